//! Conditions on a finished run, in Rhai.

use super::pattern::Bindings;
use rhai::{Array, Dynamic, Engine, EvalAltResult, Map, Scope};
use std::path::{Path, PathBuf};

type Answer<T> = Result<T, Box<EvalAltResult>>;

/// The file in which the functions expect results as JSON.
const RESULTS: &str = "results";
const COMPARISONS: [&str; 6] = [" == ", " != ", " <= ", " >= ", " < ", " > "];

/// Returns the lines that are false, each with the values of both sides.
pub fn failures(checks: &str, directory: &Path, bindings: &Bindings) -> Vec<String> {
    let (engine, mut scope) = (engine(directory), scope(bindings));
    let mut wrong = Vec::new();
    for line in checks.lines().filter(|it| !it.trim().is_empty() && !it.starts_with("//")) {
        match engine.eval_with_scope::<Dynamic>(&mut scope, line) {
            Ok(value) if value.is_unit() || value.as_bool() == Ok(true) => {}
            Ok(_) => wrong.push(format!("check: `{line}` does not hold{}", sides(&engine, &mut scope, line))),
            Err(e) => wrong.push(format!("check: `{line}`: {e}")),
        }
    }
    wrong
}

/// Evaluates an expression over the names; returns its value as text.
///
/// # Errors
/// The expression is wrong.
pub fn value(expression: &str, bindings: &Bindings) -> Result<String, String> {
    let value = Engine::new().eval_expression_with_scope::<Dynamic>(&mut scope(bindings), expression);
    value.map(|it| it.to_string()).map_err(|e| format!("{expression}: {e}"))
}

fn scope(bindings: &Bindings) -> Scope<'static> {
    let mut scope = Scope::new();
    for (name, text) in bindings {
        scope.push_dynamic(name.clone(), text.parse::<i64>().map_or_else(|_| text.clone().into(), Dynamic::from));
    }
    scope
}

fn sides(engine: &Engine, scope: &mut Scope<'static>, line: &str) -> String {
    let Some((left, right)) = COMPARISONS.iter().find_map(|it| line.split_once(it)) else { return String::new() };
    let show = |scope: &mut Scope<'static>, text: &str| {
        engine.eval_expression_with_scope::<Dynamic>(scope, text).map_or("?".into(), |it| it.to_string())
    };
    format!(": {} and {}", show(scope, left), show(scope, right))
}

fn engine(directory: &Path) -> Engine {
    let mut engine = Engine::new();
    engine.set_max_expr_depths(0, 0);
    let results = Results(directory.to_path_buf());
    let on = |it: &Results| it.clone();
    let it = on(&results);
    engine.register_fn("text", move |name: &str| it.text(name));
    let it = on(&results);
    engine.register_fn("lines", move |name: &str| it.lines(name));
    let it = on(&results);
    engine.register_fn("results", move || it.all());
    let it = on(&results);
    engine.register_fn("maps", move |name: &str| it.maps(name));
    let it = on(&results);
    engine.register_fn("map", move |name: &str| it.map(name));
    let it = on(&results);
    engine.register_fn("prints", move || it.prints());
    let it = on(&results);
    engine.register_fn("losses", move || it.losses());
    let it = on(&results);
    engine.register_fn("loss", move |name: &str| field(&it.losses()?, name));
    let it = on(&results);
    engine.register_fn("account", move |name: &str| it.account(name));
    let it = on(&results);
    engine.register_fn("adds_up", move || it.adds_up());
    engine.register_fn("nothing_lost", move || results.nothing_lost());
    engine.register_fn("sum", sum_of_map);
    engine.register_fn("sum", sum_of_array);
    engine.register_fn("hist_count", hist_count);
    engine
}

/// The results of a run: a JSON object per line.
#[derive(Clone)]
struct Results(PathBuf);

impl Results {
    fn text(&self, name: &str) -> Answer<String> {
        std::fs::read(self.0.join(name))
            .map(|it| String::from_utf8_lossy(&it).into_owned())
            .map_err(|e| format!("{name}: {e}").into())
    }

    fn lines(&self, name: &str) -> Answer<Array> {
        Ok(self.text(name)?.lines().map(|it| it.to_string().into()).collect())
    }

    fn all(&self) -> Answer<Array> {
        let engine = Engine::new();
        self.text(RESULTS)?.lines().map(|it| engine.parse_json(it, true).map(Dynamic::from)).collect()
    }

    fn data(&self, is_wanted: impl Fn(&str) -> bool) -> Answer<Vec<Dynamic>> {
        let lines = self.all()?.into_iter().filter_map(Dynamic::try_cast::<Map>);
        let wanted = lines.filter(|it| it.get("type").is_some_and(|kind| is_wanted(&kind.to_string())));
        Ok(wanted.filter_map(|it| it.get("data").cloned()).collect())
    }

    /// Returns everything that was printed of a map, in order.
    fn maps(&self, name: &str) -> Answer<Array> {
        let tables = self.data(|kind| !matches!(kind, "print" | "note" | "losses" | "attached_probes"))?;
        Ok(tables.into_iter().filter_map(|it| it.try_cast::<Map>()?.remove(name)).collect())
    }

    /// Returns what was last printed of a map.
    fn map(&self, name: &str) -> Answer<Dynamic> {
        self.maps(name)?.pop().ok_or_else(|| format!("the results have no {name}").into())
    }

    fn prints(&self) -> Answer<Array> {
        self.data(|kind| kind == "print")
    }

    fn losses(&self) -> Answer<Map> {
        let last = self.data(|kind| kind == "losses")?.pop().and_then(Dynamic::try_cast::<Map>);
        last.ok_or_else(|| "the results have no losses".into())
    }

    fn account(&self, name: &str) -> Answer<Dynamic> {
        let account = field(&self.losses()?, "account")?;
        field(&account.try_cast::<Map>().ok_or("the run has no account of launches")?, name)
    }

    /// Whether launches = joined + failed + lost.
    fn adds_up(&self) -> Answer<bool> {
        let number = |name: &str| self.account(name)?.as_int().map_err(Into::<Box<EvalAltResult>>::into);
        let parts = ["joined", "failed", "lost", "without_kernel", "without_record"];
        let sum = parts.into_iter().try_fold(0, |sum, part| Ok::<_, Box<EvalAltResult>>(sum + number(part)?));
        Ok(number("launches")? == sum?)
    }

    /// Whether every loss is zero and, with GPU probes, the account agrees with the collector's own.
    fn nothing_lost(&self) -> Answer<bool> {
        let losses = self.losses()?;
        if let Some((name, n)) = losses.iter().find(|(_, it)| it.as_int().is_ok_and(|n| n != 0)) {
            return Err(format!("{name} {n}").into());
        }
        if losses.get("account").is_none_or(Dynamic::is_unit) {
            return Ok(true);
        }
        let same =
            |a: &str, b: &str| Ok::<bool, Box<EvalAltResult>>(self.account(a)?.as_int()? == self.account(b)?.as_int()?);
        let lost = self.account("lost")?.as_int()?;
        let sums = same("kernels", "collector_kernels")? && same("kernel_nanos", "collector_kernel_nanos")?;
        Ok(lost == 0 && sums && self.adds_up()?)
    }
}

fn field(map: &Map, name: &str) -> Answer<Dynamic> {
    map.get(name).cloned().ok_or_else(|| format!("there is no {name}").into())
}

fn sum_of_map(map: Map) -> Answer<i64> {
    sum_of_array(map.into_values().collect())
}

fn sum_of_array(values: Array) -> Answer<i64> {
    let value = |it: Dynamic| match it.clone().try_cast::<Map>() {
        Some(inner) => sum_of_map(inner),
        None => it.as_int().map_err(Into::into),
    };
    values.into_iter().map(value).sum()
}

/// Returns the number of values in a histogram's buckets.
fn hist_count(buckets: Array) -> Answer<i64> {
    let count = |it: Dynamic| field(&it.try_cast::<Map>().ok_or("no bucket")?, "count")?.as_int().map_err(Into::into);
    buckets.into_iter().map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures_over(results: &str, checks: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(RESULTS), results).unwrap();
        failures(checks, directory.path(), &Bindings::from([("n".into(), "5".into()), ("who".into(), "sh".into())]))
    }

    const RUN: &str = r#"{"type":"print","data":"hello"}
{"type":"map","data":{"@n":{"a":2,"b":-3}}}
{"type":"map","data":{"@n":{"a":7}}}
{"type":"hist","data":{"@h":[{"min":1,"max":1,"count":4},{"min":2,"max":3,"count":6}]}}
{"type":"losses","data":{"map_full":0,"text_cut":2,"account":null}}
"#;

    #[test]
    fn conditions_that_hold_are_silent() {
        let checks = "n == 5\nwho == \"sh\"\nmap(\"@n\") == #{a: 7}\nsum(maps(\"@n\")) == 6\nhist_count(map(\"@h\")) == 10\n\
            prints() == [\"hello\"]\nloss(\"text_cut\") == 2\nlet twice = n * 2;\ntwice == 10\n";
        assert_eq!(failures_over(RUN, checks), Vec::<String>::new());
    }

    #[test]
    fn conditions_that_do_not_hold_say_what_there_is() {
        let wrong = failures_over(RUN, "n == 6\nmap(\"@x\") == 1\nnothing_lost()\n");
        assert_eq!(wrong[0], "check: `n == 6` does not hold: 5 and 6");
        assert!(wrong[1].contains("the results have no @x") && wrong[2].contains("text_cut 2"), "{wrong:?}");
    }
}
