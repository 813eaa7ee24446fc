//! The kernels of a file as text, as they are kept on disk.
//!
//! ```text
//! twins=sm_80,sm_90a machine_code= ptx=sm_100     ways
//!  _Z5scalePf                                     a kernel that has them, behind a space
//! ```

use super::reached::{Kernels, Ways};
use std::collections::{BTreeMap, BTreeSet};
use xputrace_wire::device::Portability;
use xputrace_wire::nvidia::fatbin::GpuTarget;

/// Changes with the form, and with what is looked for.
pub const FORM: &str = "kernels 1";
/// Returns the text; `None` for kernels that it can't have.
pub fn to_text(kernels: &Kernels) -> Option<String> {
    let mut by_ways: BTreeMap<&Ways, Vec<&str>> = BTreeMap::new();
    kernels.iter().for_each(|(symbol, ways)| by_ways.entry(ways).or_default().push(symbol));
    if kernels.keys().any(|it| it.contains('\n')) {
        return None;
    }
    let list = |it: &BTreeSet<GpuTarget>| it.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut text = String::new();
    for (Ways { twins, machine_code, ptx }, symbols) in by_ways {
        text += &format!("twins={} machine_code={} ptx={}\n", list(twins), list(machine_code), list(ptx));
        symbols.iter().for_each(|it| text.extend([" ", it, "\n"]));
    }
    Some(text)
}

/// Inverts [`to_text`]; `None` for a text that is not of its form.
pub fn of_text(text: &str) -> Option<Kernels> {
    let (mut kernels, mut ways) = (Kernels::new(), None);
    for line in text.lines() {
        match line.strip_prefix(' ') {
            Some(symbol) => _ = kernels.insert(symbol.to_owned(), Ways::clone(ways.as_ref()?)),
            None => ways = Some(ways_of_text(line)?),
        }
    }
    Some(kernels)
}

fn ways_of_text(line: &str) -> Option<Ways> {
    let mut words = line.split(' ');
    let mut list = |name: &str| -> Option<BTreeSet<GpuTarget>> {
        let all = words.next()?.strip_prefix(name)?.strip_prefix('=')?;
        all.split(',').filter(|it| !it.is_empty()).map(target_of_text).collect()
    };
    let ways = Ways { twins: list("twins")?, machine_code: list("machine_code")?, ptx: list("ptx")? };
    words.next().is_none().then_some(ways)
}

fn target_of_text(text: &str) -> Option<GpuTarget> {
    let number = text.strip_prefix("sm_")?;
    let (digits, portability) = match number.as_bytes().last()? {
        b'a' => (&number[..number.len() - 1], Portability::Exact),
        b'f' => (&number[..number.len() - 1], Portability::Family),
        _ => (number, Portability::Later),
    };
    Some(GpuTarget { sm: digits.parse().ok()?, portability })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels() -> Kernels {
        let target = |sm, portability| GpuTarget { sm, portability };
        let later = target(90, Portability::Later);
        let twins = Ways { twins: [later].into(), ..Ways::default() };
        let others = [target(90, Portability::Exact), target(100, Portability::Family)];
        let patches = Ways { machine_code: others.into(), ptx: [later].into(), ..Ways::default() };
        [("_Z5scalePf", &twins), ("nvjet_hsh", &patches), ("other", &twins)]
            .map(|(symbol, ways)| (symbol.to_owned(), ways.clone()))
            .into()
    }

    #[test]
    fn kernels_are_as_they_were_kept() {
        let text = to_text(&kernels()).unwrap();
        assert_eq!(
            text,
            "twins= machine_code=sm_90a,sm_100f ptx=sm_90\n nvjet_hsh\ntwins=sm_90 machine_code= ptx=\n _Z5scalePf\n other\n"
        );
        assert_eq!(of_text(&text), Some(kernels()));
        assert_eq!(of_text(""), Some(Kernels::new()));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            [" kernel\n", "twins=sm_90\n", "twins=sm_x machine_code= ptx=\n", "twins= machine_code= ptx= more\n"]
        {
            assert_eq!(of_text(text), None, "{text}");
        }
        let strange = Kernels::from([("two\nlines".to_owned(), Ways::default())]);
        assert_eq!(to_text(&strange), None);
    }
}
