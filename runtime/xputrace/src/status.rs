//! The exit status, decided in one place:
//!
//! | what happened | status |
//! |---|---|
//! | nothing was run: script error, usage, rights | 125; 2 from `check` and the other verbs that run nothing |
//! | `translate` left something out; `export` was given a damaged recording | 1 |
//! | a handler called `exit(code)` | that code; 125 if it is not from 0 to 255 |
//! | otherwise | the command's own; 128 + the signal that killed it |
//! | SIGTERM, SIGHUP or SIGQUIT ended the run, and the command keeps running | 128 + the signal |
//! | that is 0 or missing, but a handler, the output or a recording failed, or no probe attached |
//! 125 |
//! | interrupted twice | 128 + the signal |
//!
//! A closed pipe (`| head`) is not a failure. `--help` gives the short form.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// xputrace failed, or refused and ran nothing.
pub const FAILED: u8 = 125;
/// A script or usage error in commands that run nothing.
pub const MISTAKE: u8 = 2;

/// `translate` wrote a script that lacks something of the program, `export` what is left of a damaged recording.
pub const INCOMPLETE: u8 = 1;

/// Why nothing runs, where that was printed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A script has errors.
    Mistakes,
    /// A script's `--help` was asked for.
    Help,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("see above")
    }
}

impl std::error::Error for Said {}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    /// The code that a handler passed to `exit(code)`.
    pub exit: Option<i64>,
    /// The command's status, if it ended with the run.
    pub command: Option<ExitStatus>,
    /// The signal that made us leave a running command.
    pub left_by: Option<i32>,
    /// Whether something of ours failed, which has been reported.
    pub failed: bool,
}

impl Ended {
    pub fn code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    /// Returns the status as a number.
    pub fn number(self) -> u8 {
        let own = match (self.exit, self.command.map(|it| (it.code(), it.signal()))) {
            // A code that a process cannot have was reported when the handler exited.
            (Some(code), _) => u8::try_from(code).unwrap_or(FAILED),
            (None, Some((Some(code), _))) => code as u8,
            (None, Some((None, Some(signal)))) => 128u8.wrapping_add(signal as u8),
            (None, _) => self.left_by.map_or(0, |it| 128u8.wrapping_add(it as u8)),
        };
        if own == 0 && self.failed { FAILED } else { own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_has_something_to_say_wins() {
        let number = |exit, command: Option<i32>, failed| {
            Ended { exit, command: command.map(ExitStatus::from_raw), left_by: None, failed }.number()
        };
        assert_eq!(number(None, None, false), 0);
        assert_eq!(number(Some(4), Some(7 << 8), true), 4);
        assert_eq!((number(Some(-1), None, false), number(Some(256), None, false)), (FAILED, FAILED));
        assert_eq!((number(None, Some(7 << 8), true), number(None, Some(libc::SIGSEGV), true)), (7, 139));
        let left = Ended { left_by: Some(libc::SIGTERM), ..Ended::default() };
        assert_eq!((left.number(), Ended { command: Some(ExitStatus::from_raw(0)), ..left }.number()), (143, 0));
        assert_eq!(
            (number(None, Some(0), true), number(Some(0), None, true), number(None, None, true)),
            (125, 125, 125)
        );
    }
}
