//! A place in a symbol. It looks one or two bytes ahead, and never reads beyond the end.

pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Returns the next byte; 0 at the end.
    pub(crate) fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    /// Returns the byte `ahead` bytes after the next one; 0 beyond the end.
    pub(crate) fn peek_at(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    pub(crate) fn peek_two(&self) -> [u8; 2] {
        [self.peek(), self.peek_at(1)]
    }

    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.text.len());
    }

    /// Takes the byte if it is the next one.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let takes = !self.is_at_end() && self.peek() == byte;
        self.at += usize::from(takes);
        takes
    }

    /// Takes the text if it comes next.
    pub(crate) fn take_text(&mut self, text: &str) -> bool {
        let takes = self.text.as_bytes().get(self.at..).is_some_and(|it| it.starts_with(text.as_bytes()));
        self.at += if takes { text.len() } else { 0 };
        takes
    }

    /// Takes the byte, which must come next.
    pub(crate) fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    /// Takes the next `bytes` bytes, which must be whole characters.
    pub(crate) fn slice(&mut self, bytes: usize) -> Option<&'a str> {
        let end = self.at.checked_add(bytes)?;
        let slice = self.text.get(self.at..end)?;
        self.at = end;
        Some(slice)
    }

    /// Takes bytes as long as they are such ones, none of them beyond ASCII.
    pub(crate) fn slice_while(&mut self, is_one: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let length = rest.iter().take_while(|it| it.is_ascii() && is_one(**it)).count();
        self.slice(length).unwrap_or("")
    }

    pub(crate) fn digits(&mut self) -> &'a str {
        self.slice_while(|it| it.is_ascii_digit())
    }

    /// Takes a decimal number, as it is written: `n` is its minus sign.
    pub(crate) fn signed(&mut self) -> Option<&'a str> {
        let start = self.at;
        self.take(b'n');
        if self.digits().is_empty() {
            return None;
        }
        self.text.get(start..self.at)
    }

    /// Takes a decimal number.
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.digits().parse().ok()
    }

    /// Takes what counts things of a kind: `_` is 0, `0_` is 1, `1_` is 2.
    pub(crate) fn ordinal(&mut self) -> Option<u32> {
        if self.take(b'_') {
            return Some(0);
        }
        let number = self.number()?.checked_add(1)?;
        self.expect(b'_')?;
        Some(number)
    }

    /// Like [`Cursor::ordinal`], in base 36.
    pub(crate) fn sequence(&mut self) -> Option<u32> {
        let digits = self.slice_while(|it| it.is_ascii_digit() || it.is_ascii_uppercase());
        self.expect(b'_')?;
        if digits.is_empty() {
            return Some(0);
        }
        u32::from_str_radix(digits, 36).ok()?.checked_add(1)
    }
}
