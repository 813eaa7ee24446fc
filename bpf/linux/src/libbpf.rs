//! Loads an object in memory with libbpf, and reports what libbpf said if it fails.
//!
//! libbpf reports failures in messages, not in values: which map could not be created, which
//! program the verifier refused, and the verifier's log between two marks. These messages are
//! collected instead of printed, and parsed here.

use crate::sys;
use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel};
use std::cell::RefCell;
use std::io;
use std::sync::Once;

const LOG_BEGINS: &str = "-- BEGIN PROG LOAD LOG --";
const LOG_ENDS: &str = "-- END PROG LOAD LOG --";

/// An object that was not loaded. Everything loaded of it has been removed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    /// libbpf's messages, one per line.
    said: String,
}

/// Loads everything in the object.
pub(crate) fn load(elf: &[u8]) -> Result<Object, Refusal> {
    finish(ObjectBuilder::default(), elf, |_| Ok(()))
}

/// Loads what `prepare` leaves of an object, which gets this name.
pub(crate) fn load_prepared(
    elf: &[u8],
    name: &str,
    prepare: impl FnOnce(&mut OpenObject) -> io::Result<()>,
) -> Result<Object, Refusal> {
    let mut builder = ObjectBuilder::default();
    builder.name(name).map_err(|it| Refusal { errno: libc::EINVAL, said: it.to_string() })?;
    finish(builder, elf, prepare)
}

fn finish(
    mut builder: ObjectBuilder,
    elf: &[u8],
    prepare: impl FnOnce(&mut OpenObject) -> io::Result<()>,
) -> Result<Object, Refusal> {
    let (answer, said) = listening(|| {
        let mut open = builder.open_memory(elf).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        prepare(&mut open)?;
        sys::load_object(open)
    });
    answer.map_err(|it| Refusal { errno: it.raw_os_error().unwrap_or(libc::EIO), said })
}

/// Runs `f`; returns also what libbpf said meanwhile, a message per line.
pub(crate) fn listening<T>(f: impl FnOnce() -> T) -> (T, String) {
    listen();
    let result = f();
    (result, SAID.take().unwrap_or_default())
}

impl Refusal {
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
        libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    });
    SAID.set(Some(String::new()));
}

/// Must not panic: libbpf calls it.
fn keep(_: PrintLevel, text: String) {
    SAID.with(|it| {
        if let Ok(mut said) = it.try_borrow_mut()
            && let Some(said) = said.as_mut()
        {
            said.push_str(&text);
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
        let refusal = Refusal { errno: libc::EACCES, said: said.into() };
        assert_eq!(refusal.program(), Some("bad"));
        assert_eq!(refusal.map(), None);
        assert_eq!(refusal.verifier_log(), "0: (95) exit\nR0 !read_ok");
        assert_eq!(refusal.last_words(), "prog 'bad': failed to load: -EACCES");

        let said = "libbpf: map 'big': failed to create: -ENOMEM\n".to_owned();
        assert_eq!(Refusal { errno: libc::ENOMEM, said }.map(), Some("big"));
    }
}
