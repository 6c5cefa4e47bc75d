//! What can be wrong with a model's folder. Every error names the file, and the key or the tensor where there is one.

use std::path::PathBuf;

/// What to do about a file that is not there.
fn advice(source: &std::io::Error) -> &'static str {
    if source.kind() == std::io::ErrorKind::NotFound {
        " (a model's folder has config.json, safetensors files, tokenizer.json and chat_template.jinja)"
    } else {
        ""
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read `{}`{}", file.display(), advice(source))]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("cannot use `{}`: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A key of `config.json` has a value that this engine does not know.
    #[error("cannot use `{}`: `{key}`: {reason}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The system starts no more threads.
    #[error("cannot start {n_threads} threads; set fewer")]
    Threads {
        /// How many were asked for.
        n_threads: usize,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The weights of a folder are quantised to another form than somebody asked for.
    #[error(
        "cannot keep the weights of `{}` as {asked}: they are quantised to {own}; ask for {own}, leave the dtype out, or \
         use the folder that they were made from",
        folder.display()
    )]
    Quantised {
        /// The folder.
        folder: PathBuf,
        /// Their form.
        own: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A file cannot be written.
    #[error("cannot write `{}`", file.display())]
    Write {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody wanted no more of it.
    #[error("cannot finish: it was stopped")]
    Stopped,
    /// A tensor is missing, unknown, or not what it should be.
    #[error("cannot use `{}`: tensor `{tensor}`: {reason}", file.display())]
    Tensor {
        /// The file that holds it, or the folder if none does.
        file: PathBuf,
        /// Its name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// What happened and why, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_tells_the_cause() {
        let source = std::io::Error::other("a disk");
        let error = Error::Read { file: "x".into(), source };
        assert_eq!(error.chain(), "cannot read `x`: a disk");
        assert_eq!(Error::Stopped.chain(), "cannot finish: it was stopped");
    }
}
