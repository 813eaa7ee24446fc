//! Loads an object in memory with libbpf, and reports what libbpf said if it fails.
//!
//! libbpf reports failures in messages, not in values: which map could not be created, which
//! program the verifier refused, and the verifier's log between two marks. These messages are
//! collected instead of printed, and parsed here.

use crate::sys;
use libbpf_rs::{Object, ObjectBuilder, OpenObject};
use libbpf_sys::{__va_list_tag, LIBBPF_WARN, libbpf_print_level};
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::io;
use std::sync::Once;

const LOG_BEGINS: &str = "-- BEGIN PROG LOAD LOG --";
const LOG_ENDS: &str = "-- END PROG LOAD LOG --";

/// An object that was not loaded. Everything loaded of it has been removed.
#[derive(Debug)]
pub(crate) struct ObjectRefusal {
    answer: io::Error,
    /// libbpf's messages, one per line.
    said: String,
}

/// Loads everything in the object.
pub(crate) fn load(elf: &[u8]) -> Result<Object, ObjectRefusal> {
    finish(ObjectBuilder::default(), elf, |_| Ok(()))
}

/// Loads what `prepare` leaves of an object, which gets this name.
pub(crate) fn load_prepared(
    elf: &[u8],
    name: &str,
    prepare: impl FnOnce(&mut OpenObject) -> io::Result<()>,
) -> Result<Object, ObjectRefusal> {
    let mut builder = ObjectBuilder::default();
    builder.name(name).map_err(|it| ObjectRefusal { answer: reason(&it), said: String::new() })?;
    finish(builder, elf, prepare)
}

fn finish(
    mut builder: ObjectBuilder,
    elf: &[u8],
    prepare: impl FnOnce(&mut OpenObject) -> io::Result<()>,
) -> Result<Object, ObjectRefusal> {
    let (answer, said) = listening(|| {
        let mut open = builder.open_memory(elf).map_err(|it| reason(&it))?;
        prepare(&mut open)?;
        sys::load_object(open)
    });
    answer.map_err(|answer| ObjectRefusal { answer, said })
}

/// Returns an error of libbpf's with all that led to it.
pub(crate) fn reason(error: &libbpf_rs::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}

/// Runs `f`; returns also what libbpf said meanwhile, a message per line.
pub(crate) fn listening<T>(f: impl FnOnce() -> T) -> (T, String) {
    listen();
    let result = f();
    (result, SAID.take().unwrap_or_default())
}

impl ObjectRefusal {
    /// Returns what Linux answered, or libbpf.
    pub(crate) fn answer(&self) -> io::Error {
        match self.answer.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(self.answer.to_string()),
        }
    }

    /// Whether we may not load anything. The verifier gives the same errno for what it refuses, but also a log.
    pub(crate) fn is_of_permission(&self) -> bool {
        self.answer.raw_os_error() == Some(libc::EPERM) && self.verifier_log().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn new(errno: i32, said: &str) -> ObjectRefusal {
        ObjectRefusal { answer: io::Error::from_raw_os_error(errno), said: said.into() }
    }

    /// Parses `prog 'NAME': BPF program load failed: …`.
    pub(crate) fn program(&self) -> Option<&str> {
        self.subject("prog '", "': BPF program load failed")
    }

    /// Parses `map 'NAME': failed to create: …`.
    pub(crate) fn map(&self) -> Option<&str> {
        self.subject("map '", "': failed to create:")
    }

    fn subject(&self, before: &str, after: &str) -> Option<&str> {
        self.said.lines().find_map(|it| Some(it.split_once(before)?.1.split_once(after)?.0))
    }

    pub(crate) fn verifier_log(&self) -> &str {
        let after = self.said.split_once(LOG_BEGINS).map_or("", |(_, it)| it);
        after.split_once(LOG_ENDS).map_or(after, |(it, _)| it).trim_matches('\n')
    }

    /// Returns libbpf's last message.
    pub(crate) fn last_words(&self) -> &str {
        self.said.lines().last().unwrap_or_default().trim_start_matches("libbpf: ")
    }
}

thread_local! {
    /// Messages of the load in progress on this thread.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Starts collecting. At other times libbpf's messages repeat what a call's result says.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // libbpf-rs' own function panics at text that is not UTF-8, which names in an object may be.
        // SAFETY: the function is sound for what libbpf passes, and does not panic.
        unsafe { libbpf_sys::libbpf_set_print(Some(print)) };
    });
    SAID.set(Some(String::new()));
}

/// Longest message that is kept whole. The verifier's log comes as one.
const MOST_MESSAGE_BYTES: usize = 1 << 20;

unsafe extern "C" {
    /// C's function.
    fn vsnprintf(text: *mut c_char, size: usize, format: *const c_char, arguments: *mut __va_list_tag) -> c_int;
}

/// Keeps warnings. Must not panic: libbpf calls it.
unsafe extern "C" fn print(level: libbpf_print_level, format: *const c_char, arguments: *mut __va_list_tag) -> c_int {
    if level > LIBBPF_WARN {
        return 0;
    }
    let mut bytes = vec![0u8; MOST_MESSAGE_BYTES];
    // SAFETY: libbpf passes a format and its arguments, and the buffer has that size.
    let length = unsafe { vsnprintf(bytes.as_mut_ptr().cast(), bytes.len(), format, arguments) };
    bytes.truncate(usize::try_from(length).unwrap_or(0).min(MOST_MESSAGE_BYTES - 1));
    keep(&String::from_utf8_lossy(&bytes));
    length
}

fn keep(text: &str) {
    SAID.with(|it| {
        if let Ok(mut said) = it.try_borrow_mut()
            && let Some(said) = said.as_mut()
        {
            said.push_str(text);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_apart() {
        let said = "libbpf: prog 'bad': BPF program load failed: -EACCES\n\
                    libbpf: prog 'bad': -- BEGIN PROG LOAD LOG --\n0: (95) exit\nR0 !read_ok\n\
                    -- END PROG LOAD LOG --\nlibbpf: prog 'bad': failed to load: -EACCES\n";
        let refusal = ObjectRefusal::new(libc::EACCES, said);
        assert_eq!(refusal.program(), Some("bad"));
        assert_eq!(refusal.map(), None);
        assert_eq!(refusal.verifier_log(), "0: (95) exit\nR0 !read_ok");
        assert_eq!(refusal.last_words(), "prog 'bad': failed to load: -EACCES");

        let said = "libbpf: map 'big': failed to create: -ENOMEM\n";
        assert_eq!(ObjectRefusal::new(libc::ENOMEM, said).map(), Some("big"));
    }

    #[test]
    fn a_reason_without_a_number_is_told() {
        let elf = include_bytes!("../../../tests/objects/direct.bpf.o");
        let refusal = load_prepared(elf, "o", |_| Err(io::Error::other("a map has another size"))).unwrap_err();
        assert_eq!(refusal.answer().to_string(), "a map has another size");
        let refusal = load(b"no object").unwrap_err();
        assert!(refusal.answer().to_string().contains("failed to open"), "{}", refusal.answer());
    }

    #[test]
    fn what_the_verifier_refuses_is_no_lack_of_permission() {
        let said = "libbpf: prog 'p': BPF program load failed: -EPERM\n";
        assert!(ObjectRefusal::new(libc::EPERM, said).is_of_permission());
        let log = format!("{said}libbpf: prog 'p': {LOG_BEGINS}\nR0 leaks addr\n{LOG_ENDS}\n");
        assert!(!ObjectRefusal::new(libc::EPERM, &log).is_of_permission());
        assert!(!ObjectRefusal::new(libc::EACCES, said).is_of_permission());
    }
}
