//! Live tests that cannot be text files (`cases.rs` runs those): they read ELF files, or change
//! their own root.

mod release;
