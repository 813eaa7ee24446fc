//! What symbols cost that grow: never more than in proportion to their length to read, and never more than the budget to
//! print. It is counted, not timed.

use crate::CppSymbol;
use crate::limits::{DEEPEST, DEEPEST_PRINTED, LONGEST_NAME, LONGEST_SYMBOL, MOST_STEPS};
use crate::parse::parse;
use crate::print::{Shown, cost};

const ALL: [Shown; 3] = [Shown::Name, Shown::ShortName, Shown::Parameters];

/// Reads and prints a symbol, checks what it costs, and returns whether it was read.
fn is_bounded(symbol: &str) -> bool {
    let Some((tree, root)) = parse(symbol) else { return false };
    assert!(tree.size() <= 2 * symbol.len(), "{} nodes for {symbol}", tree.size());
    for shown in ALL {
        let (steps, written) = cost(&tree, root, shown);
        assert!(steps <= MOST_STEPS + 1, "{steps} steps for {symbol}");
        // What went beyond the limit may be one identifier.
        assert!(written <= 2 * LONGEST_NAME, "{written} bytes for {symbol}");
    }
    true
}

/// A symbol in which each part has the one before twice.
fn doubling(start: &str, part: impl Fn(usize) -> String, end: &str) -> String {
    start.to_string() + &(0..40).map(part).collect::<String>() + end
}

/// How a candidate is referred to.
fn candidate(n: usize) -> String {
    if n == 0 { "S_".into() } else { format!("S{}_", base36(n - 1)) }
}

fn base36(n: usize) -> String {
    let digit = |n: usize| char::from_digit(n as u32, 36).unwrap().to_ascii_uppercase();
    if n < 36 { digit(n).to_string() } else { base36(n / 36) + &digit(n % 36).to_string() }
}

#[test]
fn nested_arguments_are_read_once() {
    for times in [1, 8, 20, 40, 200, 2000] {
        is_bounded(&format!("_ZNplIiStI6vorIi{}StISaIiE", "lIiStI".repeat(times)));
        is_bounded(&format!("_ZNplIiStI6vorIi{}E{}", "lIiStI".repeat(times), "E".repeat(2 * times)));
        is_bounded(&format!("_ZN13QConcatenableI14QStringBuilderI{}E", "S0_I".repeat(times)));
        is_bounded(&format!("_Z1fIX{}LZ1gvEEEvv", "cvT_".repeat(times)));
        is_bounded(&format!("_Z1fIX{}Evv", "sr1AIX".repeat(times)));
        is_bounded(&format!("_Z1f{}", "PF".repeat(times)));
        is_bounded(&format!("_ZN1A{}Ev", "cvT_I".repeat(times)));
        is_bounded(&format!("_Z{}1fvE1x", "Z".repeat(times)));
    }
    let nested =
        format!("_ZN13QConcatenableI14QStringBuilderI{}7QString{}E4sizeEv", "S0_I".repeat(50), "S2_E".repeat(50));
    assert!(!is_bounded(&nested) || CppSymbol::parse(&nested).is_some());
}

#[test]
fn both_readings_of_a_qualifier_are_linear() {
    let levels = |times: usize| format!("_Z1fI{}Evv", "Xsr1AIiE1BIiEE1vE".repeat(times));
    assert!(is_bounded(&levels(200)));
    let types = |times: usize| format!("_Z1fI{}Evv", "Xsr1AIiE1vE".repeat(times));
    assert!(is_bounded(&types(200)));
}

#[test]
fn growing_names_stop() {
    // `f`, `A` and `A<int>` come first.
    let growing = doubling("_Z1fI1AIiE", |n| format!("S0_I{0}{0}E", candidate(n + 2)), "Evv");
    assert!(is_bounded(&growing));
    assert!(CppSymbol::parse(&growing).unwrap().names().is_none());
}

#[test]
fn growing_work_for_nothing_stops() {
    // Each expansion of an empty pack has two of the one before in it, and comes to nothing.
    let growing = doubling("_Z1fIJEEvDp1AIT_E", |n| format!("DpS0_IS1_{0}{0}E", candidate(2 * n + 4)), "");
    assert!(is_bounded(&growing));
    assert!(CppSymbol::parse(&growing).unwrap().with_parameters().is_none());
    // Identifiers that are written and taken back.
    let long = "x".repeat(8000);
    let taken_back = format!("_Z1fIJEEvDp8000{long}IT_E{}", "S3_".repeat(2000));
    assert!(is_bounded(&taken_back));
    assert!(CppSymbol::parse(&taken_back).unwrap().with_parameters().is_none());
    // Patterns without a pack, which are put into parentheses afterwards.
    let patterns = format!("_Z1fIiEv1AI{}E", "Xspplfp_fp_E".repeat(1200));
    assert!(is_bounded(&patterns));
}

#[test]
fn depth_is_bounded_and_fits_a_small_stack() {
    let check = || {
        for times in [DEEPEST / 2 - 4, DEEPEST - 4, DEEPEST, 4000] {
            for (open, close) in [("P", ""), ("1AI", "E"), ("PFvP", "E"), ("N1AI", "E1BE"), ("Dp1AI", "E"), ("M1A", "")]
            {
                is_bounded(&format!("_Z1fI{}i{}Evv", open.repeat(times), close.repeat(times)));
                is_bounded(&format!("_Z1f{}i{}", open.repeat(times), close.repeat(times)));
            }
            is_bounded(&format!("_Z1fIX{}Li1EEEvv", "ng".repeat(times)));
            is_bounded(&format!("_Z{}1fv{}", "Z".repeat(times), "E1x".repeat(times)));
            is_bounded(&format!("_Z1fI{}{}Evv", "UlZ1g".repeat(times), "E1xE_".repeat(times)));
        }
        // Each candidate is a pointer to the one before.
        let pointers =
            |n: usize| format!("_Z1fP1A{}", (0..n).map(|it| format!("P{}", candidate(it + 1))).collect::<String>());
        assert!(is_bounded(&pointers(DEEPEST_PRINTED)));
        assert!(is_bounded(&pointers(2000)));
        // Each is an argument of the next one.
        let inside = |n: usize| {
            format!("_Z1f1AIiE{}", (0..n).map(|it| format!("S_I{}E", candidate(it + 1))).collect::<String>())
        };
        assert!(is_bounded(&inside(DEEPEST_PRINTED)));
        assert!(is_bounded(&inside(1500)));
    };
    let small = std::thread::Builder::new().stack_size(1 << 20).spawn(check).unwrap();
    small.join().unwrap();
}

#[test]
fn long_symbols_have_no_name() {
    let parameters = |n: usize| format!("_Z1f{}", "i".repeat(n));
    assert!(is_bounded(&parameters(LONGEST_SYMBOL - 4)));
    assert!(!is_bounded(&parameters(LONGEST_SYMBOL - 3)));
}
