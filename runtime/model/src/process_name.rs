//! Names of processes, as `--comm` gives them.

/// Bytes of a process's name in Linux (`TASK_COMM_LEN`), with at least one NUL at the end.
pub const COMM_BYTES: usize = 16;

/// The name of a process, or its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName {
    text: String,
    /// Whether more may follow.
    is_beginning: bool,
}

impl ProcessName {
    /// Reads `NAME`, or `BEGINNING*`. Linux keeps the first 15 bytes of a name; the rest is ignored here too.
    ///
    /// # Errors
    /// It is empty, or has a star elsewhere.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, is_beginning) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (text, false),
        };
        if text.is_empty() {
            return Err("the name is missing".into());
        }
        if name.contains('*') {
            return Err("a `*` may only be at the end of the name".into());
        }
        let cut = (0..=name.len().min(COMM_BYTES - 1)).rev().find(|it| name.is_char_boundary(*it)).unwrap_or(0);
        Ok(ProcessName { text: name[..cut].to_owned(), is_beginning })
    }

    /// Whether this is the name of a process, as in `/proc/PID/comm`.
    pub fn matches(&self, comm: &str) -> bool {
        if self.is_beginning { comm.starts_with(&self.text) } else { comm == self.text }
    }

    /// Returns the bytes that a name in Linux must begin with; they include the final NUL of a whole name.
    pub fn bytes(&self) -> Vec<u8> {
        let end: &[u8] = if self.is_beginning { &[] } else { &[0] };
        [self.text.as_bytes(), end].concat()
    }
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.text, if self.is_beginning { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessName;

    #[test]
    fn a_name_is_a_whole_name_or_a_beginning() {
        let name = |it| ProcessName::parse(it).unwrap();
        assert!(name("python3").matches("python3") && !name("python3").matches("python3.12"));
        assert!(name("python*").matches("python3.12") && !name("python*").matches("pytho"));
        assert!(name("a-name-of-twenty-bytes").matches("a-name-of-twent"));
        assert_eq!((name("sh").bytes(), name("sh*").bytes()), (b"sh\0".to_vec(), b"sh".to_vec()));
        assert!(ProcessName::parse("").is_err() && ProcessName::parse("a*b").is_err());
    }
}
