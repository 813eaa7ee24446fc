//! What the program has outside of an image: the file that it was loaded from, and where its PTX may be.

use super::memory::text_at;
use std::ffi::c_char;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::absolute;
use xputrace_wire::device::{CACHE_VARIABLES, ImageOutcome, MOST_IMAGE_BYTES};
use xputrace_wire::stored::ReadableMemory;

unsafe extern "C" {
    /// The C library's (environ(7)).
    static environ: *const *const c_char;
}

/// More than environments have.
const MOST_VARIABLES: u64 = 100_000;

/// A file that the program has loaded, as it is now.
pub(super) struct LoadedFile {
    /// Its absolute path; empty if that can't be said in a line.
    pub(super) path: String,
    /// Ends with a 0, as text does in memory.
    contents: Vec<u8>,
}

impl LoadedFile {
    /// Reads the file whose path is at this address.
    pub(super) fn read(path: u64, memory: &mut dyn ReadableMemory) -> Result<Self, ImageOutcome> {
        let path = text_at(path, memory).ok_or(ImageOutcome::File)?;
        // It may not be what it was when it was loaded: reading must not wait.
        let open = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
        let file = open.map_err(|_| ImageOutcome::File)?;
        let about = file.metadata().map_err(|_| ImageOutcome::File)?;
        if !about.is_file() {
            return Err(ImageOutcome::File);
        }
        if about.len() > MOST_IMAGE_BYTES {
            return Err(ImageOutcome::TooLarge);
        }
        let mut contents = Vec::new();
        file.take(MOST_IMAGE_BYTES).read_to_end(&mut contents).map_err(|_| ImageOutcome::File)?;
        contents.push(0);
        let path = absolute(&path).ok().and_then(|it| it.into_os_string().into_string().ok()).filter(|it| is_line(it));
        Ok(LoadedFile { path: path.unwrap_or_default(), contents })
    }

    /// Returns where its contents are.
    pub(super) fn address(&self) -> u64 {
        self.contents.as_ptr() as u64
    }
}

/// Returns the lines of an IMAGE's text for a cubin.
pub(super) fn places_of_portable_code(file: Option<&LoadedFile>, memory: &mut dyn ReadableMemory) -> String {
    let values = values_of(CACHE_VARIABLES, memory);
    let values = values.map(|it| it.filter(|it| is_line(it)).unwrap_or_default());
    format!("{}\n{}", values.join("\n"), file.map_or("", |it| &it.path))
}

fn is_line(text: &str) -> bool {
    !text.contains('\n')
}

/// Returns the values of environment variables as they are now. The program's threads may change them meanwhile, so that
/// `getenv` could crash: Linux reads them.
fn values_of<const N: usize>(names: [&str; N], memory: &mut dyn ReadableMemory) -> [Option<String>; N] {
    let mut values = [const { None }; N];
    // SAFETY: a pointer that the C library has set up; only its value is read.
    let first = unsafe { (&raw const environ).read_volatile() } as u64;
    for at in 0..MOST_VARIABLES {
        let mut pointer = [0; 8];
        if !memory.read(first.wrapping_add(at * 8), &mut pointer) || pointer == [0; 8] {
            break;
        }
        let Some(text) = text_at(u64::from_le_bytes(pointer), memory) else { continue };
        let Some((name, value)) = text.split_once('=') else { continue };
        if let Some(index) = names.iter().position(|it| *it == name).filter(|it| values[*it].is_none()) {
            values[index] = Some(value.to_owned());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::super::memory::ProgramMemory;
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn variables_are_read_as_they_are() {
        let mut memory = ProgramMemory::new().unwrap();
        let values = values_of(["PATH", "CARGO_MANIFEST_DIR", "XPUTRACE_NO_SUCH_VARIABLE"], &mut memory);
        assert_eq!(
            values,
            ["PATH", "CARGO_MANIFEST_DIR", "XPUTRACE_NO_SUCH_VARIABLE"].map(|it| std::env::var(it).ok())
        );
        assert_eq!(places_of_portable_code(None, &mut memory).lines().count(), 3, "the last one is empty");
    }

    #[test]
    fn a_file_is_read_by_the_path_at_an_address() {
        let mut memory = ProgramMemory::new().unwrap();
        let path = std::env::temp_dir().join(format!("xputrace-loaded-{}", std::process::id()));
        std::fs::write(&path, b".version 8.0").unwrap();
        let text = CString::new(path.as_os_str().as_bytes()).unwrap();
        let file = LoadedFile::read(text.as_ptr() as u64, &mut memory).map_err(|it| format!("{it:?}")).unwrap();
        assert_eq!((file.contents.as_slice(), file.path.as_str()), (&b".version 8.0\0"[..], path.to_str().unwrap()));
        std::fs::remove_file(&path).unwrap();
        for no_file in [text.as_ptr() as u64, c"/dev/zero".as_ptr() as u64, c"/".as_ptr() as u64, 8] {
            assert_eq!(LoadedFile::read(no_file, &mut memory).err(), Some(ImageOutcome::File));
        }
    }
}
