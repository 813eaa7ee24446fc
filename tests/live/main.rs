//! Live tests that are not text files (`cases.rs` runs those): they read ELF, or change their own root.

mod release;
