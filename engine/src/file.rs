//! Reads the files of a model's folder, up to a size: what lies there was made by others. Only regular files, or links to
//! them, are opened: a pipe would be waited for without an end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::Error;

/// The whole file.
///
/// # Errors
/// It cannot be read, or is larger than the limit.
pub(crate) fn read(file: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    let n_bytes = open(file)?.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(failed)?;
    if n_bytes as u64 > limit_bytes {
        return Err(Error::File {
            file: file.to_owned(),
            reason: format!("it is larger than {limit_bytes} bytes"),
        });
    }
    Ok(bytes)
}

/// The file, which must be a regular one.
///
/// # Errors
/// It cannot be opened, or is a folder, a pipe or a device.
pub(crate) fn open(file: &Path) -> Result<File, Error> {
    let failed = |source| Error::Read { file: file.to_owned(), source };
    // Looked at before it is opened: opening a pipe waits for whoever writes into it.
    if !std::fs::metadata(file).map_err(failed)?.is_file() {
        let reason = "it is a folder, a pipe or a device; put a regular file there".into();
        return Err(Error::File { file: file.to_owned(), reason });
    }
    File::open(file).map_err(failed)
}

/// A JSON file; none if there is no such file.
///
/// # Errors
/// It cannot be read, is larger than the limit, or is not the JSON that is expected.
pub(crate) fn json<T: DeserializeOwned>(file: &Path, limit_bytes: u64) -> Result<Option<T>, Error> {
    match read(file, limit_bytes) {
        Ok(bytes) => parse(file, &bytes).map(Some),
        Err(Error::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a JSON file says.
///
/// # Errors
/// It is not the JSON that is expected.
pub(crate) fn parse<T: DeserializeOwned>(file: &Path, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::File { file: file.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        std::fs::write(&file, "[1]").unwrap();
        assert_eq!(read(&file, 3).unwrap(), b"[1]");
        assert_eq!(json::<Vec<u32>>(&file, 3).unwrap(), Some(vec![1]));
        let error = read(&file, 2).expect_err("it is larger").to_string();
        assert!(error.contains("x.json`: it is larger than 2 bytes"), "{error}");
        let error = json::<u32>(&file, 3).expect_err("it is a list").to_string();
        assert!(error.contains("x.json`: invalid type"), "{error}");
        assert_eq!(json::<u32>(&folder.path().join("none"), 3).unwrap(), None);
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        std::fs::write(path("file"), "[1]").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        for odd in [path("zero"), folder.path().to_owned()] {
            let error = json::<u32>(&odd, 3).expect_err("it is no regular file").to_string();
            assert!(error.contains("it is a folder, a pipe or a device"), "{error}");
        }
        assert_eq!(json::<Vec<u32>>(&path("link"), 3).unwrap(), Some(vec![1]));
    }
}
