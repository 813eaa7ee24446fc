//! Operators of interpreted handlers, where Rhai's own answer differently from compiled code.
//!
//! Integers wrap; comparing with a missing value is an error, as computing with it is; and a kernel's name
//! equals its mangled form. Rhai's shifts are the rule for both.

use crate::units;
use rhai::{Dynamic, Engine, EvalAltResult, ImmutableString, Position};
use rustc_hash::FxHashMap;
use std::any::TypeId;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use xputrace_model::schema::Unit;

/// The mangled forms of names, by the tag that the names' values carry.
#[derive(Clone, Default)]
pub(crate) struct Symbols(Rc<RefCell<FxHashMap<i32, Arc<str>>>>);

impl Symbols {
    /// Remembers a mangled form; returns the tag for values that are its name, 0 if its id is too large.
    pub(crate) fn tag(&self, id: u64, symbol: &Arc<str>) -> i32 {
        let tag = i32::try_from(id).unwrap_or(0);
        if tag != 0 && !self.0.borrow().contains_key(&tag) {
            self.0.borrow_mut().insert(tag, symbol.clone());
        }
        tag
    }

    fn is_symbol_of(&self, name: &Dynamic, text: &str) -> bool {
        self.0.borrow().get(&name.tag()).is_some_and(|it| **it == *text)
    }

    /// Whether two strings are equal, or one is the mangled form of the other.
    fn are_equal(&self, args: &[&mut Dynamic]) -> bool {
        let [a, b] = args else { return false };
        let text = |it: &Dynamic| it.read_lock::<ImmutableString>().map(|it| it.clone()).unwrap_or_default();
        let (text_a, text_b) = (text(a), text(b));
        text_a == text_b || self.is_symbol_of(a, &text_b) || self.is_symbol_of(b, &text_a)
    }
}

/// Registers the operators; the top level keeps Rhai's own, where an overflow is an error.
pub(crate) fn register(engine: &mut Engine, symbols: &Symbols) {
    // Rhai would not look for ours.
    engine.set_fast_operators(false);
    register_arithmetic(engine);
    register_comparisons(engine);
    let strings = [TypeId::of::<ImmutableString>(); 2];
    for (name, equal) in [("==", true), ("!=", false)] {
        let symbols = symbols.clone();
        engine.register_raw_fn(name, strings, move |_, args| Ok(symbols.are_equal(args) == equal));
    }
}

fn register_arithmetic(engine: &mut Engine) {
    type Operation = fn(i64, i64) -> i64;
    let wrapping: [(&str, &str, Operation); 3] =
        [("+", "+=", i64::wrapping_add), ("-", "-=", i64::wrapping_sub), ("*", "*=", i64::wrapping_mul)];
    for (name, assigning, operation) in wrapping {
        keep_units(engine, name, move |a, b| Ok(operation(a, b)));
        engine.register_fn(assigning, move |a: &mut i64, b: i64| *a = operation(*a, b));
    }
    let dividing: [(&str, &str, Operation); 2] = [("/", "/=", i64::wrapping_div), ("%", "%=", i64::wrapping_rem)];
    for (name, assigning, operation) in dividing {
        keep_units(engine, name, move |a, b| divided(operation, a, b));
        engine.register_fn(assigning, move |a: &mut i64, b: i64| divided(operation, *a, b).map(|it| *a = it));
    }
    engine.register_fn("-", i64::wrapping_neg);
    engine.register_fn("abs", i64::wrapping_abs);
}

/// Registers an operator whose result has the unit that follows from those of its operands.
fn keep_units(
    engine: &mut Engine,
    name: &'static str,
    operation: impl Fn(i64, i64) -> Result<i64, Box<EvalAltResult>> + 'static,
) {
    engine.register_raw_fn(name, [TypeId::of::<i64>(); 2], move |_, args| {
        let (a, b) = (args[0].as_int().unwrap_or_default(), args[1].as_int().unwrap_or_default());
        let unit_of = |op| units::of_result(op, units::of_tagged(args[0]), units::of_tagged(args[1]), Some(b));
        Ok(units::tagged(operation(a, b)?, units::operation(name).map_or(Unit::None, unit_of)))
    });
}

fn divided(operation: fn(i64, i64) -> i64, a: i64, b: i64) -> Result<i64, Box<EvalAltResult>> {
    match b {
        0 => Err(EvalAltResult::ErrorArithmetic(format!("Division by zero: {a} / {b}"), Position::NONE).into()),
        _ => Ok(operation(a, b)),
    }
}

/// Makes comparing a missing value the error that computing with it is: Rhai would answer `false`.
fn register_comparisons(engine: &mut Engine) {
    for name in ["<", "<=", ">", ">="] {
        let missing = move |types: &str| -> Result<bool, Box<EvalAltResult>> {
            Err(EvalAltResult::ErrorFunctionNotFound(format!("{name} ({types})"), Position::NONE).into())
        };
        engine.register_fn(name, move |(): (), it: Dynamic| missing(&format!("(), {}", it.type_name())));
        engine.register_fn(name, move |it: Dynamic, (): ()| missing(&format!("{}, ()", it.type_name())));
        engine.register_fn(name, move |(): (), (): ()| missing("(), ()"));
    }
}
