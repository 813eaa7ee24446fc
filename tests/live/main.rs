//! Live tests that cannot be text files (`cases.rs` runs those): they read ELF files, change
//! their own root, or load objects by aya.

mod objects;
mod release;
