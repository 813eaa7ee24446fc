//! Makes an input small that still does the same.

use std::io;
use std::time::{Duration, Instant};

/// How long to go on: each attempt is a program that is started.
const MOST_TIME: Duration = Duration::from_secs(30);

/// Returns the smallest input found of which the same still is true.
pub(crate) fn minimised(input: Vec<u8>, is_same: &mut dyn FnMut(&[u8]) -> io::Result<bool>) -> io::Result<Vec<u8>> {
    let end = Instant::now() + MOST_TIME;
    let mut smallest = input;
    let mut piece = smallest.len().div_ceil(2);
    while piece > 0 && Instant::now() < end {
        let before = smallest.len();
        let mut at = 0;
        while at < smallest.len() && Instant::now() < end {
            let mut shorter = smallest.clone();
            shorter.drain(at..(at + piece).min(shorter.len()));
            if is_same(&shorter)? { smallest = shorter } else { at += piece }
        }
        piece = if piece == 1 && smallest.len() < before { 1 } else { piece / 2 };
    }
    Ok(smallest)
}
