//! Cubins on disk: a file for each, named by a hash of all that it was made of.
//!
//! ```text
//! magic | SHA-256 of its name and of what follows | u64 bytes of text | what ptxas said | cubin
//! ```

use crate::ptxas::Output;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use xputrace_boundary::create::{Creator, FileAccess};
use xputrace_boundary::read;
use xputrace_boundary::trust::Changers;
use xputrace_boundary::user::Account;

const MAGIC: &[u8; 8] = b"xptcubi1";
const HASH_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + HASH_BYTES + size_of::<u64>();
/// A cubin, and what was said of it.
const MOST_FILE_BYTES: u64 = 96 << 20;

/// A directory with cubins.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
    most_bytes: u64,
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("{}: {answer}", path.display())]
    System { path: PathBuf, answer: io::Error },
    #[error("{}: it is not a directory that only user {uid} can write", path.display())]
    NotOurs { path: PathBuf, uid: u32 },
}

/// The hash of all that a cubin is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CubinKey([u8; HASH_BYTES]);

impl CubinKey {
    /// Returns the key of what is made of these parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        CubinKey(hash.finalize().into())
    }

    fn file_name(self) -> String {
        self.0.iter().fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}

impl Cache {
    /// Opens the cache in a directory, which is made if it is missing. Its files have `most_bytes` together: where there
    /// are more, those go that were not used for longest.
    ///
    /// # Errors
    /// The directory can't be made, or others can write there: what is in it runs in programs.
    pub fn open(directory: &Path, most_bytes: u64) -> Result<Cache, CacheError> {
        let failed = |answer| CacheError::System { path: directory.to_owned(), answer };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let found = fs::symlink_metadata(directory).map_err(failed)?;
        let (us, changers) = (Account::current(), Changers::of_path(directory).map_err(failed)?);
        if !found.is_dir() || found.uid() != us.uid || !changers.are_among(&[us]) {
            return Err(CacheError::NotOurs { path: directory.to_owned(), uid: us.uid });
        }
        Ok(Cache { directory: directory.to_owned(), most_bytes })
    }

    /// Returns what was made before; removes a file that is damaged.
    pub(crate) fn get(&self, key: CubinKey) -> Option<Output> {
        let path = self.directory.join(key.file_name());
        let file = read::open(&path).ok()?;
        let output = read::contents(&file, MOST_FILE_BYTES).ok().and_then(|it| decode(key, &it));
        match output {
            // It was used now; if that can't be noted, it goes the earlier.
            Some(_) => _ = file.set_modified(SystemTime::now()),
            None => _ = fs::remove_file(&path),
        }
        output
    }

    /// Keeps what was made. A file is there as a whole or not at all.
    pub(crate) fn put(&self, key: CubinKey, output: &Output) -> Result<(), CacheError> {
        let failed = |answer| CacheError::System { path: self.directory.clone(), answer };
        let path = self.directory.join(key.file_name());
        Creator::own().write(&path, &encode(key, output), FileAccess::Private).map_err(failed)?;
        // What is kept is there. A cache that can't be read here is tidied by the next one.
        let _ = self.evict();
        Ok(())
    }

    /// Returns a text that was kept under these words.
    pub fn text(&self, words: &[&str]) -> Option<String> {
        self.get(CubinKey::of(words)).map(|it| it.said)
    }

    /// Keeps a text under these words, which no compiler's begin with.
    ///
    /// # Errors
    /// The directory can't be written.
    pub fn keep_text(&self, words: &[&str], text: String) -> Result<(), CacheError> {
        self.put(CubinKey::of(words), &Output { code: Vec::new(), said: text })
    }

    /// Removes the files that were not used for longest, until the rest is small enough. Drafts that somebody left
    /// behind are files like others.
    fn evict(&self) -> io::Result<()> {
        let describe = |it: fs::DirEntry| {
            let about = it.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((about.modified().ok()?, about.len(), it.path()))
        };
        let mut files: Vec<_> = fs::read_dir(&self.directory)?.flatten().filter_map(describe).collect();
        files.sort();
        let mut n_bytes: u64 = files.iter().map(|it| it.1).sum();
        for (_, bytes, path) in files {
            if n_bytes <= self.most_bytes {
                break;
            }
            // Another tracer may have removed it.
            let _ = fs::remove_file(path);
            n_bytes -= bytes;
        }
        Ok(())
    }
}

fn checksum(key: CubinKey, rest: &[&[u8]]) -> [u8; HASH_BYTES] {
    let mut hash = Sha256::new();
    hash.update(key.0);
    rest.iter().for_each(|it| hash.update(it));
    hash.finalize().into()
}

fn encode(key: CubinKey, Output { code, said }: &Output) -> Vec<u8> {
    let said_bytes = (said.len() as u64).to_le_bytes();
    let sum = checksum(key, &[&said_bytes, said.as_bytes(), code]);
    [&MAGIC[..], &sum, &said_bytes, said.as_bytes(), code].concat()
}

/// Inverts [`encode`]; `None` if a byte of it has changed.
pub(crate) fn decode(key: CubinKey, bytes: &[u8]) -> Option<Output> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let (sum, said_bytes) = head.strip_prefix(MAGIC)?.split_at_checked(HASH_BYTES)?;
    if sum != checksum(key, &[said_bytes, rest]) {
        return None;
    }
    let said_bytes = usize::try_from(u64::from_le_bytes(said_bytes.try_into().ok()?)).ok()?;
    let (said, code) = rest.split_at_checked(said_bytes)?;
    Some(Output { code: code.to_vec(), said: String::from_utf8(said.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn output(code: &[u8]) -> Output {
        Output { code: code.to_vec(), said: "ptxas info".into() }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            fs::read_dir(directory).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn what_was_kept_is_found_under_its_key_alone() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("a/b"), 1 << 20).unwrap();
        let key = CubinKey::of(&["text", "sm_90"]);
        assert_eq!(cache.get(key), None);
        cache.put(key, &output(b"code")).unwrap();
        assert_eq!(cache.get(key), Some(output(b"code")));
        assert_eq!(cache.get(CubinKey::of(&["text", "sm_80"])), None);
        assert_ne!(key, CubinKey::of(&["texts", "m_90"]), "where one part ends counts");
    }

    #[test]
    fn texts_are_kept_beside_cubins() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 1 << 20).unwrap();
        cache.keep_text(&["kernels 1", "/lib/x.so"], "sum".into()).unwrap();
        assert_eq!(cache.text(&["kernels 1", "/lib/x.so"]), Some("sum".into()));
        assert_eq!(cache.text(&["kernels 2", "/lib/x.so"]), None);
    }

    #[test]
    fn a_file_that_was_changed_is_not_used_and_goes() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 1 << 20).unwrap();
        let (key, other) = (CubinKey::of(&["one"]), CubinKey::of(&["other"]));
        let bytes = encode(key, &output(b"code"));
        for at in 0..=bytes.len() {
            let damaged = match bytes.get(at) {
                Some(byte) => [&bytes[..at], &[byte ^ 1], &bytes[at + 1..]].concat(),
                None => bytes[..at - 1].to_vec(),
            };
            assert_eq!(decode(key, &damaged), None, "{at}");
        }
        assert_eq!(decode(other, &bytes), None, "a file under another name");
        let path = directory.path().join(key.file_name());
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(cache.get(key), None);
        assert!(!path.exists());
    }

    #[test]
    fn those_go_that_were_not_used_for_longest() {
        let directory = tempfile::tempdir().unwrap();
        let keys = ["a", "b", "c", "d"].map(|it| CubinKey::of(&[it]));
        let bytes = encode(keys[0], &output(&[0; 100])).len() as u64;
        let cache = Cache::open(directory.path(), 3 * bytes).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for (age, key) in (0..).zip(&keys[..3]) {
            cache.put(*key, &output(&[0; 100])).unwrap();
            let file = File::options().write(true).open(directory.path().join(key.file_name())).unwrap();
            file.set_modified(long_ago + Duration::from_secs(age)).unwrap();
        }
        cache.get(keys[0]).expect("used now");
        cache.put(keys[3], &output(&[0; 100])).unwrap();
        let mut kept = [keys[0], keys[2], keys[3]].map(CubinKey::file_name);
        kept.sort();
        assert_eq!(names(directory.path()), kept);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Cache::open(&open, 1), Err(CacheError::NotOurs { .. })));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(Cache::open(&link, 1).is_err());
        fs::write(directory.path().join("file"), b"").unwrap();
        assert!(matches!(Cache::open(&directory.path().join("file/x"), 1), Err(CacheError::System { .. })));
    }
}
