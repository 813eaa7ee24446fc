//! Texts as a script writes them: in quotes, and within backticks.

/// Writes a text for within backticks.
pub(crate) fn within_backticks(text: &str) -> String {
    let mut code = String::new();
    let mut chars = text.chars().peekable();
    while let Some(it) = chars.next() {
        match it {
            '\n' => code.push_str("\\n"),
            '\t' => code.push_str("\\t"),
            '\\' => code.push_str("\\\\"),
            '`' => code.push_str("``"),
            '$' if chars.peek() == Some(&'{') => code.push_str("${\"$\"}"),
            it if it.is_control() => code += &format!("${{{}}}", quoted(&it.to_string())),
            it => code.push(it),
        }
    }
    code
}

/// Writes a text in quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut code = String::from("\"");
    for it in text.chars() {
        match it {
            '\n' => code.push_str("\\n"),
            '\t' => code.push_str("\\t"),
            '\r' => code.push_str("\\r"),
            '\\' => code.push_str("\\\\"),
            '"' => code.push_str("\\\""),
            it if it.is_control() => code += &format!("\\u{:04x}", u32::from(it)),
            it => code.push(it),
        }
    }
    code.push('"');
    code
}
