//! Finds the PTX of a cubin that Triton has made.
//!
//! Triton keeps what it compiles, a directory each: `CACHE/HASH/NAME.cubin`, and beside it `NAME.ptx`, from which that was
//! made. A program loads the cubin, from its memory or from its file. So the PTX of an image is that beside a cubin with
//! the same bytes.
//!
//! All of it is the program's, and may be anything: nothing outside of its root is opened, and no link is followed below
//! the cache.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use xputrace_boundary::read::{self, Links};
use xputrace_wire::device::Cubin;
use xputrace_wire::device::MOST_IMAGE_BYTES;

/// Directories of one cache that are looked at.
const MOST_DIRECTORIES: usize = 100_000;
/// Files of one of them: Triton makes about ten.
const MOST_FILES: usize = 10_000;
const CUBIN: &str = "cubin";
const PTX: &str = "ptx";

/// The caches that were looked at, by device and inode.
#[derive(Debug, Default)]
pub struct TritonCaches(Mutex<HashMap<(u64, u64), Listing>>);

/// The cubins of a cache, by the directory that they are in.
#[derive(Debug, Default)]
struct Listing(HashMap<OsString, Listed>);

/// A directory as it was when it was listed.
#[derive(Debug)]
struct Listed {
    modified: SystemTime,
    /// Sizes and names of its cubins.
    cubins: Vec<(u64, OsString)>,
}

impl TritonCaches {
    /// Returns the PTX of a cubin that a process has loaded, if it is where Triton keeps it.
    pub fn ptx_of(&self, pid: u32, cubin: &Cubin<'_>) -> Option<Vec<u8>> {
        let root = read::open_directory(Path::new(&format!("/proc/{pid}/root"))).ok()?;
        let beside = || ptx_beside(&root, Path::new(cubin.file?), cubin.bytes);
        let in_cache = || {
            let directory =
                read::open_directory_below(&root, &cache_directory(&cubin.variables)?, Links::InRoot).ok()?;
            self.find(&directory, cubin.bytes)
        };
        beside().or_else(in_cache)
    }

    /// Searches a cache.
    fn find(&self, cache: &File, bytes: &[u8]) -> Option<Vec<u8>> {
        let about = cache.metadata().ok()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = known.entry((about.dev(), about.ino())).or_default();
        listing.find(cache, bytes).or_else(|| {
            listing.update(cache);
            listing.find(cache, bytes)
        })
    }
}

impl Listing {
    fn find(&self, cache: &File, bytes: &[u8]) -> Option<Vec<u8>> {
        let size = bytes.len() as u64;
        let files = self.0.iter().flat_map(|(directory, it)| it.cubins.iter().map(move |it| (directory, it)));
        let mut same_size = files.filter(|it| it.1.0 == size).map(|(directory, it)| Path::new(directory).join(&it.1));
        same_size.find_map(|it| ptx_of_file(cache, &it, Links::None, bytes))
    }

    /// Lists the directories that have changed since they were listed. One is complete before its cubin is loaded.
    fn update(&mut self, cache: &File) {
        let Ok(entries) = read::entries(cache, MOST_DIRECTORIES) else { return };
        let mut before = std::mem::take(&mut self.0);
        for (name, about) in entries.into_iter().filter(|it| it.1.is_dir()) {
            let Ok(modified) = about.modified() else { continue };
            let listed = before.remove(&name).filter(|it| it.modified == modified);
            let listed = listed.unwrap_or_else(|| Listed { modified, cubins: cubins_in(cache, &name) });
            self.0.insert(name, listed);
        }
    }
}

fn cubins_in(cache: &File, directory: &OsStr) -> Vec<(u64, OsString)> {
    let directory = read::open_directory_below(cache, Path::new(directory), Links::None);
    let entries = directory.and_then(|it| read::entries(&it, MOST_FILES)).unwrap_or_default();
    let is_cubin = |name: &OsStr| Path::new(name).extension() == Some(OsStr::new(CUBIN));
    entries.into_iter().filter(|it| is_cubin(&it.0)).map(|(name, about)| (about.len(), name)).collect()
}

/// Returns the directory that Triton uses in a process with these variables ([`xputrace_wire::device::CACHE_VARIABLES`]).
fn cache_directory(variables: &[Option<&str>; 3]) -> Option<PathBuf> {
    let [cache, triton_home, home] = variables.map(|it| it.map(PathBuf::from).filter(|it| it.is_absolute()));
    cache.or_else(|| Some(triton_home.or(home)?.join(".triton/cache")))
}

/// Returns the PTX beside the file that a process has loaded.
fn ptx_beside(root: &File, file: &Path, bytes: &[u8]) -> Option<Vec<u8>> {
    ptx_of_file(root, file, Links::InRoot, bytes)
}

/// Returns the PTX beside a file, if that has these bytes.
fn ptx_of_file(from: &File, path: &Path, links: Links, bytes: &[u8]) -> Option<Vec<u8>> {
    let read = |path: &Path| read::contents(&read::open_below(from, path, links).ok()?, MOST_IMAGE_BYTES).ok();
    let is_same = read(path)? == bytes;
    is_same.then(|| read(&path.with_extension(PTX))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A made-up cache, below a directory that stands for a root.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Place(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, contents: &str) -> PathBuf {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, contents).unwrap();
            path
        }

        fn open(&self) -> File {
            File::open(self.0.path()).unwrap()
        }
    }

    #[test]
    fn ptx_is_beside_the_cubin_with_the_same_bytes() {
        let place = Place::new();
        for (hash, cubin) in [("AA", "\x7fELF one"), ("BB", "\x7fELF two"), ("CC", "\x7fELF longer")] {
            place.write(&format!("{hash}/kernel.cubin"), cubin);
            place.write(&format!("{hash}/kernel.ptx"), &format!("// {hash}"));
        }
        place.write("DD/alone.cubin", "\x7fELF alone");
        symlink(place.0.path().join("AA"), place.0.path().join("EE")).unwrap();
        let (caches, cache) = (TritonCaches::default(), place.open());
        let find = |bytes: &[u8]| caches.find(&cache, bytes).map(|it| String::from_utf8(it).unwrap());
        assert_eq!(find(b"\x7fELF two").as_deref(), Some("// BB"));
        assert_eq!(find(b"\x7fELF longer").as_deref(), Some("// CC"));
        assert_eq!(find(b"\x7fELF six"), None);
        assert_eq!(find(b"\x7fELF alone"), None, "without PTX");
        place.write("FF/later.cubin", "\x7fELF later");
        place.write("FF/later.ptx", "// FF");
        assert_eq!(find(b"\x7fELF later").as_deref(), Some("// FF"), "that was made meanwhile");
        fs::remove_dir_all(place.0.path().join("FF")).unwrap();
        assert_eq!(find(b"\x7fELF later"), None);
    }

    #[test]
    fn only_directories_that_have_changed_are_listed_again() {
        let place = Place::new();
        (0..1000).for_each(|it| _ = place.write(&format!("{it:04}/k.cubin"), &"x".repeat(it + 1)));
        let (cache, mut listing) = (place.open(), Listing::default());
        listing.update(&cache);
        assert_eq!(listing.0.len(), 1000);
        // What was listed is believed until the directory changes.
        let entry = listing.0.get_mut(OsStr::new("0007")).unwrap();
        entry.cubins = vec![(5, "seen".into())];
        listing.update(&cache);
        assert_eq!(listing.0[OsStr::new("0007")].cubins, [(5, "seen".into())]);
        place.write("0007/other.cubin", "xy");
        let directory = File::open(place.0.path().join("0007")).unwrap();
        // Not within what a clock of the file system can tell apart.
        directory.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        listing.update(&cache);
        assert_eq!(listing.0[OsStr::new("0007")].cubins.len(), 2);
    }

    #[test]
    fn links_lead_nowhere_else() {
        let (place, outside) = (Place::new(), Place::new());
        outside.write("secret", "secret");
        place.write("AA/k.cubin", "\x7fELF");
        symlink(outside.0.path().join("secret"), place.0.path().join("AA/k.ptx")).unwrap();
        assert_eq!(TritonCaches::default().find(&place.open(), b"\x7fELF"), None);
        assert_eq!(ptx_beside(&place.open(), Path::new("/AA/k.cubin"), b"\x7fELF"), None);
        fs::remove_file(place.0.path().join("AA/k.ptx")).unwrap();
        place.write("AA/k.ptx", "// AA");
        let beside = |bytes| ptx_beside(&place.open(), Path::new("/AA/k.cubin"), bytes);
        assert_eq!((beside(b"\x7fELF"), beside(b"\x7fElf")), (Some(b"// AA".to_vec()), None));
    }

    #[test]
    fn the_cache_is_where_triton_has_it() {
        let of = |variables| cache_directory(&variables).map(|it| it.to_str().unwrap().to_owned());
        assert_eq!(of([Some("/tmp/c"), Some("/t"), Some("/h")]).as_deref(), Some("/tmp/c"));
        assert_eq!(of([None, Some("/t"), Some("/h")]).as_deref(), Some("/t/.triton/cache"));
        assert_eq!(of([Some("relative"), None, Some("/h")]).as_deref(), Some("/h/.triton/cache"));
        assert_eq!(of([None, None, None]), None);
    }
}
