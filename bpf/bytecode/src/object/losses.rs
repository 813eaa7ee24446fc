//! What the slots of a script's loss maps count, as a section of text: a line a slot, `KIND LINE FILE`.

/// Name of the section. It is no code and no data of a program's, so that loaders pass over it.
pub(super) const SECTION: &str = "xputrace.losses";

/// A slot of `losses_k` and `losses_d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossSlot {
    /// The name of what is counted.
    pub kind: String,
    /// The source's name, and the line that counts.
    pub file: String,
    pub line: u32,
}

pub(super) fn to_text(slots: &[LossSlot]) -> String {
    slots.iter().map(|it| format!("{} {} {}\n", it.kind, it.line, it.file)).collect()
}

/// Reads the section. The bytes are untrusted; the error is a sentence.
pub(super) fn parse(data: &[u8]) -> Result<Vec<LossSlot>, String> {
    let text = str::from_utf8(data).map_err(|_| "it is no text".to_owned())?;
    let slot = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (kind, number, file) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        Some(LossSlot { kind: kind.to_owned(), file: file.to_owned(), line: number })
    };
    text.lines().map(|it| slot(it).ok_or_else(|| format!("`{it}` is not KIND LINE FILE"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let slot = |kind: &str, line, file: &str| LossSlot { kind: kind.into(), file: file.into(), line };
        let slots = [slot("map_full", 3, "a b.rhai"), slot("division_by_zero", 12, "-e")];
        assert_eq!(parse(to_text(&slots).as_bytes()), Ok(slots.to_vec()));
        assert_eq!(parse(b""), Ok(Vec::new()));
        assert!(parse(b"map_full three x\n").is_err() && parse(b"map_full 3\n").is_err() && parse(&[0xff]).is_err());
    }
}
