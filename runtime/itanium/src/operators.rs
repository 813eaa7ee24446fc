//! The operators by their two letters: what they look like, and what follows them in an expression.

/// An operator, as its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op(u8);

/// What follows an operator in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Prefix,
    /// `_` and an operand, or the operand that it comes after.
    Step,
    Binary,
    /// These have a rule of their own.
    Other,
}

struct Operator {
    code: [u8; 2],
    text: &'static str,
    form: Form,
}

const fn op(code: &[u8; 2], text: &'static str, form: Form) -> Operator {
    Operator { code: *code, text, form }
}

/// Sorted by code.
const OPERATORS: &[Operator] = &[
    op(b"aN", "&=", Form::Binary),
    op(b"aS", "=", Form::Binary),
    op(b"aa", "&&", Form::Binary),
    op(b"ad", "&", Form::Prefix),
    op(b"an", "&", Form::Binary),
    op(b"aw", " co_await", Form::Other),
    op(b"cl", "()", Form::Other),
    op(b"cm", ",", Form::Binary),
    op(b"co", "~", Form::Prefix),
    op(b"dV", "/=", Form::Binary),
    op(b"da", " delete[]", Form::Other),
    op(b"de", "*", Form::Prefix),
    op(b"dl", " delete", Form::Other),
    op(b"dv", "/", Form::Binary),
    op(b"eO", "^=", Form::Binary),
    op(b"eo", "^", Form::Binary),
    op(b"eq", "==", Form::Binary),
    op(b"ge", ">=", Form::Binary),
    op(b"gt", ">", Form::Binary),
    op(b"ix", "[]", Form::Other),
    op(b"lS", "<<=", Form::Binary),
    op(b"le", "<=", Form::Binary),
    op(b"ls", "<<", Form::Binary),
    op(b"lt", "<", Form::Binary),
    op(b"mI", "-=", Form::Binary),
    op(b"mL", "*=", Form::Binary),
    op(b"mi", "-", Form::Binary),
    op(b"ml", "*", Form::Binary),
    op(b"mm", "--", Form::Step),
    op(b"na", " new[]", Form::Other),
    op(b"ne", "!=", Form::Binary),
    op(b"ng", "-", Form::Prefix),
    op(b"nt", "!", Form::Prefix),
    op(b"nw", " new", Form::Other),
    op(b"oR", "|=", Form::Binary),
    op(b"oo", "||", Form::Binary),
    op(b"or", "|", Form::Binary),
    op(b"pL", "+=", Form::Binary),
    op(b"pl", "+", Form::Binary),
    op(b"pm", "->*", Form::Binary),
    op(b"pp", "++", Form::Step),
    op(b"ps", "+", Form::Prefix),
    op(b"pt", "->", Form::Other),
    op(b"qu", "?", Form::Other),
    op(b"rM", "%=", Form::Binary),
    op(b"rS", ">>=", Form::Binary),
    op(b"rm", "%", Form::Binary),
    op(b"rs", ">>", Form::Binary),
    op(b"ss", "<=>", Form::Binary),
];

impl Op {
    /// Returns the operator of two letters.
    pub(crate) fn of(code: [u8; 2]) -> Option<Self> {
        let at = OPERATORS.binary_search_by_key(&code, |it| it.code).ok()?;
        u8::try_from(at).ok().map(Self)
    }

    /// As it is written after `operator`.
    pub(crate) fn text(self) -> &'static str {
        OPERATORS.get(usize::from(self.0)).map_or("", |it| it.text)
    }

    pub(crate) fn form(self) -> Form {
        OPERATORS.get(usize::from(self.0)).map_or(Form::Other, |it| it.form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_sorted() {
        assert!(OPERATORS.is_sorted_by_key(|it| it.code));
    }
}
