//! Reads which lines of the source an object's code came from: `.BTF.ext`.
//!
//! Source: Linux's Documentation/bpf/btf.rst, ".BTF.ext section".

use std::collections::BTreeMap;
use std::ops::Range;

use super::types::{BtfWords, Types};
use super::{COLUMN_BITS, INSN_BYTES};
use crate::image::Line;

/// Lines of one source file. A longer file's last lines have no text.
const MOST_LINES: u32 = 1 << 17;
/// Bytes of `struct bpf_line_info`, and of `struct bpf_core_relo`; records may be longer.
const RECORD_BYTES: u32 = 16;
/// A header of this size tells where the latter are.
const HEADER_BYTES_WITH_FIELDS: u32 = 32;

/// The lines of an object's code.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By section: the slot where each begins.
    sections: BTreeMap<String, Vec<Line>>,
    /// Names of source files, and their lines by number.
    files: Vec<(String, BTreeMap<u32, String>)>,
    /// By section: slots that are relocated to a field (CO-RE).
    fields: BTreeMap<String, Vec<usize>>,
}

impl Lines {
    /// Reads the contents of `.BTF.ext`; there are no lines in no bytes.
    ///
    /// # Errors
    /// They are cut off.
    pub(super) fn parse(ext: &[u8], types: &Types) -> Result<Lines, String> {
        let mut lines = Lines::default();
        if ext.is_empty() {
            return Ok(lines);
        }
        let mut header = BtfWords { data: ext };
        let [_magic, header_bytes, _functions, _functions_bytes, lines_at, lines_bytes] = header.words()?;
        let part = |at: u32, bytes: u32| {
            let start = header_bytes as usize + at as usize;
            ext.get(start..start + bytes as usize).ok_or("`.BTF.ext` is cut off")
        };
        each_record(part(lines_at, lines_bytes)?, types, &mut |section, record| lines.add(section, record, types))?;
        if header_bytes >= HEADER_BYTES_WITH_FIELDS {
            let [fields_at, fields_bytes] = header.words()?;
            each_record(part(fields_at, fields_bytes)?, types, &mut |section, [offset, ..]| {
                lines.fields.entry(section.to_owned()).or_default().push(offset as usize / INSN_BYTES);
                Ok(())
            })?;
        }
        lines.sections.values_mut().for_each(|it| it.sort_by_key(|line| line.insn));
        Ok(lines)
    }

    /// Returns the first of these slots that reads a field of a struct that another program defines, by its name: it has a
    /// number in its place that is right only by chance.
    pub(super) fn first_field(&self, section: &str, slots: &Range<usize>) -> Option<usize> {
        self.fields.get(section)?.iter().copied().filter(|it| slots.contains(it)).min()
    }

    fn add(&mut self, section: &str, [offset, file, text, place]: [u32; 4], types: &Types) -> Result<(), String> {
        let (name, text) = (types.string(file)?, types.string(text)?);
        let (line, column) = (place >> COLUMN_BITS, place & ((1 << COLUMN_BITS) - 1));
        if line == 0 {
            return Ok(()); // Made by the compiler: it counts as part of the line before.
        }
        let file = self.files.iter().position(|it| it.0 == name).unwrap_or_else(|| {
            self.files.push((name, BTreeMap::new()));
            self.files.len() - 1
        });
        self.files[file].1.insert(line, text);
        let line = Line { insn: offset as usize / INSN_BYTES, file, line, column };
        self.sections.entry(section.to_owned()).or_default().push(line);
        Ok(())
    }

    /// Returns the lines of these slots of a section, as those of a program whose slot `start` is the first of them.
    pub(super) fn within(&self, section: &str, slots: &Range<usize>, start: usize) -> Vec<Line> {
        let all = self.sections.get(section).map(Vec::as_slice).unwrap_or_default();
        let within = all.iter().filter(|it| slots.contains(&it.insn));
        within.map(|it| Line { insn: it.insn - slots.start + start, ..*it }).collect()
    }

    /// Returns name and text of each file.
    pub(super) fn sources(&self) -> Vec<(String, String)> {
        self.files.iter().map(|(name, lines)| (name.clone(), text(lines))).collect()
    }
}

/// Takes a section's name, and the first four words of a record that is about it.
type OnRecord<'a> = dyn FnMut(&str, [u32; 4]) -> Result<(), String> + 'a;

/// Calls `f` with each record.
fn each_record(data: &[u8], types: &Types, f: &mut OnRecord<'_>) -> Result<(), String> {
    if data.is_empty() {
        return Ok(());
    }
    let mut words = BtfWords { data };
    let rest = match words.words()? {
        [bytes] if bytes >= RECORD_BYTES && bytes.is_multiple_of(4) => (bytes - RECORD_BYTES) / 4,
        [bytes] => return Err(format!("`.BTF.ext` has records of {bytes} bytes")),
    };
    while !words.data.is_empty() {
        let [section, n_records] = words.words()?;
        let section = types.string(section)?;
        for _ in 0..n_records {
            let record = words.words()?;
            words.skip(rest)?;
            f(&section, record)?;
        }
    }
    Ok(())
}

fn text(lines: &BTreeMap<u32, String>) -> String {
    let last = lines.keys().next_back().copied().unwrap_or(0).min(MOST_LINES);
    (1..=last).map(|it| format!("{}\n", lines.get(&it).map_or("", String::as_str))).collect()
}
