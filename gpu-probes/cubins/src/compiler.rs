//! Finds a `ptxas` that can compile a text, and compiles each text once.

use crate::cache::{Cache, CacheError, CubinKey};
use crate::ptxas::{Failure, Output, Ptxas, Purpose};
use crate::usage::{StackUsage, Usage, frames, parse};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use xputrace_boundary::child::Limit;
use xputrace_boundary::user::Account;

/// PTX that is to be compiled.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub text: &'a str,
    /// What the text is for, as it says: `sm_90a`.
    pub target: &'a str,
    pub purpose: Purpose,
    /// The GPU's compute capability, such as 90.
    pub capability: u32,
    /// Where a `ptxas` may be: the first that can compile the text does.
    pub candidates: &'a [PathBuf],
    /// The user whose code it is. A caller who isn't root is that user.
    pub account: Account,
    /// What keeps cubins of that user's, if anything.
    pub cache: Option<&'a Cache>,
    pub limit: Limit<'a>,
}

/// Machine code for a GPU.
#[derive(Clone, Debug)]
pub struct Cubin {
    pub code: Vec<u8>,
    /// What its kernels use.
    pub usage: Vec<Usage>,
    /// What its kernels and functions take of the stack.
    pub frames: StackUsage,
    pub by: Arc<Ptxas>,
    /// Whether it was made before.
    pub is_kept: bool,
    /// Why it was not kept, where it should have been.
    pub unkept: Option<Arc<CacheError>>,
}

/// Why a text was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCubin {
    /// No `ptxas` can. Says of each why, if there are any.
    NoPtxas(Vec<String>),
    /// Says why, such as the first error in the text.
    Failed(String),
}

/// What is known of a program: whether it is a `ptxas` that a user can run.
type KnownCompilers = HashMap<(PathBuf, Account), Result<Arc<Ptxas>, String>>;
/// What comes of compiling a text.
type Made = Result<(Output, bool, Option<Arc<CacheError>>), Failure>;
/// Texts that are being compiled, for a user.
type Current = HashMap<(CubinKey, Account), Arc<OnceLock<Made>>>;

/// Compiles, from any number of threads.
#[derive(Debug, Default)]
pub struct Compiler {
    known: Mutex<KnownCompilers>,
    current: Mutex<Current>,
}

impl Compiler {
    /// Compiles a text, unless that was done before. Those who ask for the same at once get the same.
    ///
    /// # Errors
    /// Why it was not compiled: the driver's compiler may still do it.
    pub fn compile(&self, order: Order<'_>) -> Result<Cubin, NoCubin> {
        let architecture = architecture(order.target, order.capability);
        let mut reasons = Vec::new();
        for path in order.candidates {
            let made = self.ptxas(path, order).map_err(Failure::Unfit).and_then(|ptxas| {
                let (Output { code, said }, is_kept, unkept) = self.once(&ptxas, &architecture, order)?;
                Ok(Cubin { code, usage: parse(&said), frames: frames(&said), by: ptxas, is_kept, unkept })
            });
            match made {
                Ok(cubin) => return Ok(cubin),
                Err(Failure::Unfit(why)) => reasons.push(why),
                Err(Failure::Failed(why)) => return Err(NoCubin::Failed(why)),
            }
        }
        Err(NoCubin::NoPtxas(reasons))
    }

    fn ptxas(&self, path: &Path, Order { account, limit, .. }: Order<'_>) -> Result<Arc<Ptxas>, String> {
        let key = (path.to_owned(), account);
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let found = Ptxas::at(path, account, limit).map(Arc::new).map_err(|it| it.to_string());
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        found
    }

    /// Compiles, or waits for another thread that does.
    fn once(&self, ptxas: &Ptxas, architecture: &str, order: Order<'_>) -> Made {
        let key = CubinKey::of(&[&ptxas.recipe(architecture, order.purpose), order.text]);
        let of_user = (key, order.account);
        let current = || self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = current().entry(of_user).or_default().clone();
        let made = cell.get_or_init(|| {
            if let Some(output) = order.cache.and_then(|it| it.get(key)) {
                return Ok((output, true, None));
            }
            let output = ptxas.compile(order.text, (architecture, order.purpose), order.account, order.limit)?;
            let unkept = order.cache.and_then(|it| it.put(key, &output).err()).map(Arc::new);
            Ok((output, false, unkept))
        });
        current().remove(&of_user);
        made.clone()
    }
}

/// Returns the architecture to compile for: that of the GPU, with the suffix of a text for exactly that one (PTX ISA,
/// ".target"): `sm_90a` is no `sm_90`.
fn architecture(target: &str, capability: u32) -> String {
    let exact = format!("sm_{capability}a");
    if target == exact { exact } else { format!("sm_{capability}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_the_gpus() {
        for (target, expected) in
            [("sm_90a", "sm_90a"), ("sm_80", "sm_90"), ("sm_90", "sm_90"), ("sm_100f", "sm_90"), ("", "sm_90")]
        {
            assert_eq!(architecture(target, 90), expected, "{target}");
        }
    }
}
