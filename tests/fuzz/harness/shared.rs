//! What the program with one target tells the one that started it, even as it dies: the input, and how far it has come.

use super::MOST_INPUT_BYTES;
use memmap2::MmapMut;
use std::fs::File;
use std::io;
use std::path::Path;

const HEAD: usize = 64;

/// Memory of both: a file's.
pub(crate) struct Shared(MmapMut);

/// The words before the input.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// Bytes of the input.
    Len,
    /// How many inputs were read.
    Inputs,
    /// Nanoseconds of CPU time that the slowest one took.
    Slowest,
    /// Bytes that one held at most.
    MostHeld,
    /// How many were kept because they reached something new.
    Kept,
    /// Counters of the code that any has reached.
    Reached,
}

impl Shared {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        File::create_new(path)?.set_len((HEAD + MOST_INPUT_BYTES) as u64)?;
        Shared::open(path)
    }

    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        // SAFETY: only these two programs have the file, and one reads it when the other has ended.
        unsafe { MmapMut::map_mut(&file) }.map(Shared)
    }

    pub(crate) fn get(&self, word: Word) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|it| self.0[word as usize * 8 + it]))
    }

    pub(crate) fn set(&mut self, word: Word, value: u64) {
        self.0[word as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn input(&self) -> Vec<u8> {
        self.0[HEAD..][..self.get(Word::Len) as usize].to_vec()
    }

    pub(crate) fn set_input(&mut self, input: &[u8]) {
        self.set(Word::Len, input.len() as u64);
        self.0[HEAD..][..input.len()].copy_from_slice(input);
    }
}
