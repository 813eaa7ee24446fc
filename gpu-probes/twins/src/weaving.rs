//! Weaves handlers into kernels.

use crate::block_end;
use crate::handler::{Wanted, keeps, places_of, switch_of, switches_of};
use crate::kept::Kept;
use crate::kernels::Kernels;
use crate::maker::Maker;
use crate::refusal::{Failure, NoTwin, Refused};
use crate::spot::Spot;
use crate::target::CompileTarget;
use crate::text::Gpu;
use crate::twin_text::TwinText;
use std::collections::{BTreeMap, BTreeSet};
use xputrace_device::layout::declaration;
use xputrace_device::{Refusal, TableAt};
use xputrace_events::DeviceEvent;
use xputrace_ptx::{Module, Point, WeaveError};
use xputrace_wire::device::{Choice, NAMES_VARIABLE, twin_symbol};

impl Maker {
    /// Makes the twin of these kernels of a module. They can be copied faithfully.
    pub(crate) fn twin(
        &self,
        mut module: Module,
        gpu: Gpu,
        kernels: BTreeMap<String, (Choice, Wanted)>,
    ) -> Result<TwinText, Failure> {
        let choices = kernels.values().map(|it| it.0).collect();
        let kernels: BTreeMap<String, Wanted> = kernels.into_iter().map(|(name, it)| (name, it.1)).collect();
        let target = CompileTarget::of(&module);
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        module.only(&names)?;
        let calls = module.calls();
        let recurs = names.iter().any(|it| calls.leads_to_recursion(it));
        let recursive_original = recurs.then(|| module.to_string());
        // Before variables are redirected, which adds reads of their addresses.
        let read_names = self.weave(&mut module, &kernels, target.architecture.min(gpu.capability))?;
        let variables = module.redirect(&mut |it| !it.is_literal())?;
        module.declare(&declaration(switches_of(&self.handlers)))?;
        if !read_names.is_empty() {
            module.declare(&format!(".visible .const .align 8 .u64 {NAMES_VARIABLE}[{}];", read_names.len()))?;
        }
        if kernels.values().any(|it| self.of_place(it, DeviceEvent::BlockEnd).next().is_some()) {
            module.declare(block_end::DECLARATION)?;
        }
        for kernel in &names {
            module.rename(kernel, &twin_symbol(kernel))?;
        }
        Ok(TwinText {
            text: module.to_string(),
            target: target.text,
            kernels: names.into_iter().map(str::to_owned).collect(),
            variables: variables.into_iter().map(|it| it.name).collect(),
            names: read_names,
            choices,
            recursive_original,
        })
    }

    /// Weaves the handlers in; returns the symbols whose names they read, if they read any.
    fn weave(
        &self,
        module: &mut Module,
        kernels: &BTreeMap<String, Wanted>,
        architecture: u32,
    ) -> Result<Vec<String>, Failure> {
        let shared = self.share(module, kernels)?;
        let mut kernels = Kernels::of(module, kernels, shared);
        kernels.callees = self.callees(module, &kernels)?;
        let kept = self.kept(module, &kernels, architecture)?;
        for (kernel, kept) in &kept {
            module.begin(kernel, &kept.registers())?;
        }
        let (mut refused, mut reads_names) = (Refused::new(), false);
        module.weave(&kernels.names(), &mut |site| {
            let kernel = kernels.caller(site)?;
            let kept = kept.get(kernel).filter(|_| kernel == site.function);
            let spot = kernels.spot(kernel, site);
            match self.at_places(kernels.wanted(kernel), places_of(site), &spot, architecture, kept) {
                Ok(text) => {
                    reads_names |= text.contains(NAMES_VARIABLE);
                    Some(text).filter(|it| !it.is_empty())
                }
                Err(refusal) => {
                    refused.entry(kernel.to_owned()).or_insert(NoTwin::Refused(refusal));
                    None
                }
            }
        })?;
        if !refused.is_empty() {
            return Err(Failure::Of(refused));
        }
        Ok(if reads_names { kernels.symbols() } else { Vec::new() })
    }

    /// Returns the functions whose calls have handlers, as the original calls them, in the order of their names.
    fn callees(&self, module: &Module, kernels: &Kernels<'_>) -> Result<Vec<String>, WeaveError> {
        let has_handlers = |kernel: &str| self.of_place(kernels.wanted(kernel), DeviceEvent::Call).next().is_some();
        let names = kernels.names();
        let mut callees = BTreeSet::new();
        if names.iter().any(|it| has_handlers(it)) {
            module.clone().weave(&names, &mut |site| {
                let calls = kernels.caller(site).filter(|it| site.point == Point::BeforeCall && has_handlers(it));
                callees.extend(calls.and_then(|_| kernels.callee(site)).map(str::to_owned));
                None
            })?;
        }
        Ok(callees.into_iter().collect())
    }

    /// Returns the PTX of a kernel's handlers where these places are; empty if it has none there.
    fn at_places(
        &self,
        wanted: &Wanted,
        places: &[DeviceEvent],
        spot: &Spot<'_>,
        architecture: u32,
        kept: Option<&Kept>,
    ) -> Result<String, Refusal> {
        let mut text = String::new();
        for place in places {
            let blocks = self.blocks(wanted, *place, spot, architecture, kept)?;
            let is_of_last = *place == DeviceEvent::BlockEnd && !blocks.is_empty();
            text += &if is_of_last { block_end::in_last_thread(&blocks) } else { blocks };
        }
        Ok(text)
    }

    /// Returns the PTX of a kernel's handlers at this place; empty if it has none there.
    fn blocks(
        &self,
        wanted: &Wanted,
        place: DeviceEvent,
        spot: &Spot<'_>,
        architecture: u32,
        kept: Option<&Kept>,
    ) -> Result<String, Refusal> {
        let mut text = String::new();
        let mut here = self.of_place(wanted, place).peekable();
        // Code has far more places than handlers.
        if here.peek().is_some() {
            let context = self.origin.context(spot, &self.texts);
            for at in here {
                let table = TableAt::Variable { switch: switch_of(&self.handlers[at]) };
                let sums = kept.filter(|_| keeps(place)).map(|it| it.sums(switch_of(&self.handlers[at])));
                text += &self.block(at, &context, architecture, table, sums.unwrap_or_default())?;
                text.push('\n');
            }
        }
        match kept.filter(|_| place == DeviceEvent::Exit) {
            Some(kept) => Ok(text + &self.flush(kept, spot, architecture)?),
            None => Ok(text),
        }
    }
}
