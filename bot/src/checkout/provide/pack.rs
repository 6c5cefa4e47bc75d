//! Writes one pack and its index, an object at a time: whole objects, neither compressed nor compared with each other.
//!
//! What is packed here is read a few times and thrown away with its job, or copied once from the disk beside it; a search for
//! deltas takes many times longer than everything else about a workspace, and even the fastest compression as long as all of it.
//! `git gc` makes an ordinary pack of it. The formats are those of git's `gitformat-pack`, both in their version 2.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use git2::ObjectType;
use sha1::{Digest, Sha1};
use tempfile::NamedTempFile;

use crate::checkout::object_id;

/// How the name of a pack begins that is not finished. Git and libgit2 pass over it.
pub(crate) const GROWING: &str = "pack_new_";

/// Offsets from here on do not fit into the index's table of four bytes each, whose highest bit is taken.
const FAR: u64 = 1 << 31;

/// Bytes that stand ready for the next part of an object in its zlib stream.
const BUFFER_BYTES: usize = 128 << 10;

/// SHA-1 of an object, or of a file.
pub(super) type Sum = [u8; 20];

/// Whether a pack must still be there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// It belongs to a mirror.
    Yes,
    /// It goes with its job.
    No,
}

/// A pack that grows.
pub(super) struct Writer<'f> {
    folder: &'f Path,
    out: BufWriter<NamedTempFile>,
    sum: Sha1,
    n_bytes: u64,
    zlib: Compress,
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    n_objects: u32,
}

/// Where an object lies in its pack, and the checksum of its bytes there.
#[derive(Debug, Clone, Copy)]
struct Entry {
    id: Sum,
    crc: u32,
    offset: u64,
}

impl<'f> Writer<'f> {
    /// Begins a pack of so many objects in a folder. Nothing of it is left there if it is dropped.
    pub(super) fn new(folder: &'f Path, n_objects: usize) -> Result<Self> {
        let n_objects = u32::try_from(n_objects)
            .map_err(|_| Error::other(format!("no pack holds {n_objects} objects")))?;
        let mut writer = Self {
            folder,
            out: BufWriter::with_capacity(BUFFER_BYTES, growing(folder)?),
            sum: Sha1::new(),
            n_bytes: 0,
            zlib: Compress::new(Compression::none(), true),
            buffer: vec![0; BUFFER_BYTES],
            entries: Vec::new(),
            n_objects,
        };
        let mut header = b"PACK\0\0\0\x02".to_vec();
        header.extend(n_objects.to_be_bytes());
        writer.write(&header)?;
        Ok(writer)
    }

    /// Adds an object and returns its id, which is that of the content and not what someone takes it for.
    pub(super) fn add(&mut self, kind: ObjectType, content: &[u8]) -> Result<Sum> {
        let id = object_id(kind, content);
        let (offset, mut crc) = (self.n_bytes, Crc::new());
        let header = header(kind, content.len())?;
        crc.update(&header);
        self.write(&header)?;
        self.deflate(content, &mut crc)?;
        self.entries.push(Entry { id, crc: crc.sum(), offset });
        Ok(id)
    }

    /// Writes the object's zlib stream.
    fn deflate(&mut self, content: &[u8], crc: &mut Crc) -> Result<()> {
        self.zlib.reset();
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            // Within one object neither sum is larger than its content, which is in memory.
            let (taken, given) = (self.zlib.total_in() as usize, self.zlib.total_out());
            let status =
                self.zlib.compress(&content[taken..], &mut buffer, FlushCompress::Finish)?;
            let part = &buffer[..(self.zlib.total_out() - given) as usize];
            crc.update(part);
            self.write(part)?;
            if status == Status::StreamEnd {
                break;
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.n_bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Ends the pack: it and its index are in the folder then, by the name that git would give them.
    pub(super) fn finish(mut self, lasting: Lasting) -> Result<()> {
        if self.entries.len() != self.n_objects as usize {
            let (n, of) = (self.entries.len(), self.n_objects);
            return Err(Error::other(format!("the pack has {n} objects instead of {of}")));
        }
        let sum: Sum = self.sum.clone().finalize().into();
        self.out.write_all(&sum)?;
        let pack = self.out.into_inner().map_err(|error| error.into_error())?;
        let mut index = growing(self.folder)?;
        write_index(&mut self.entries, sum, BufWriter::new(index.as_file_mut()))?;
        let name = format!("pack-{}", hex::encode(sum));
        // The index comes last: a pack without one does not exist for git.
        for (file, ending) in [(pack, "pack"), (index, "idx")] {
            file.as_file().set_permissions(PermissionsExt::from_mode(0o444))?;
            if lasting == Lasting::Yes {
                file.as_file().sync_all()?;
            }
            file.persist(self.folder.join(format!("{name}.{ending}")))?;
        }
        match lasting {
            Lasting::Yes => File::open(self.folder)?.sync_all(),
            Lasting::No => Ok(()),
        }
    }
}

fn growing(folder: &Path) -> Result<NamedTempFile> {
    tempfile::Builder::new().prefix(GROWING).tempfile_in(folder)
}

/// The kind and the size of an object: four bits of the size, then seven in each further byte, the lowest first.
fn header(kind: ObjectType, size: usize) -> Result<Vec<u8>> {
    let kind = match kind {
        ObjectType::Commit => 1,
        ObjectType::Tree => 2,
        ObjectType::Blob => 3,
        ObjectType::Tag => 4,
        ObjectType::Any => return Err(Error::other("no object is of any kind")),
    };
    let mut header = vec![kind << 4 | (size & 15) as u8];
    let mut rest = size >> 4;
    while rest > 0 {
        if let Some(last) = header.last_mut() {
            *last |= 0x80;
        }
        header.push((rest & 0x7f) as u8);
        rest >>= 7;
    }
    Ok(header)
}

/// Writes the index of a pack with this checksum, and puts the entries into its order.
fn write_index(entries: &mut [Entry], pack: Sum, mut out: impl Write) -> Result<()> {
    entries.sort_unstable_by_key(|entry| entry.id);
    let mut sum = Sha1::new();
    let mut write = |bytes: &[u8]| {
        sum.update(bytes);
        out.write_all(bytes)
    };
    write(b"\xfftOc\0\0\0\x02")?;
    for first in 0..=u8::MAX {
        let n_up_to = entries.partition_point(|entry| entry.id[0] <= first) as u32;
        write(&n_up_to.to_be_bytes())?;
    }
    for entry in &*entries {
        write(&entry.id)?;
    }
    for entry in &*entries {
        write(&entry.crc.to_be_bytes())?;
    }
    let mut far = Vec::new();
    for entry in &*entries {
        let near = match entry.offset < FAR {
            true => entry.offset as u32,
            false => {
                far.push(entry.offset);
                FAR as u32 | (far.len() - 1) as u32
            }
        };
        write(&near.to_be_bytes())?;
    }
    for offset in far {
        write(&offset.to_be_bytes())?;
    }
    write(&pack)?;
    let sum = sum.finalize();
    out.write_all(&sum)?;
    out.flush()
}
