//! Translates CUPTI's callbacks for API calls into launches of the agent.

use super::calls::{self, CallRole, IDS};
use super::functions::{CallbackData, CallbackId, SITE_ENTER, SITE_EXIT, context, domain, result};
use super::run::{CuptiBackend, Run};
use std::sync::atomic::Ordering;
use xputrace_agent::Layer;
use xputrace_agent::ThisThread;
use xputrace_agent::launch::{self, Entered, Records, Returned, Submission};
use xputrace_unwind::Pushed;

impl Run {
    /// Handles an API call on entry or return.
    ///
    /// # Safety
    /// `data` is CUPTI's for this call, `registers` those at CUPTI's call.
    #[inline(always)]
    pub(super) unsafe fn on_call(
        &self,
        thread: &'static ThisThread,
        (domain, id): CallbackId,
        data: &CallbackData,
        registers: &Pushed,
    ) {
        if self.has_host_calls {
            // SAFETY: the caller promises that `data` is CUPTI's for this call, and the registers at CUPTI's call.
            return unsafe { self.on_watched_call(thread, (domain, id), data, registers) };
        }
        // SAFETY: the caller promises that `data` is CUPTI's for this call, and the registers at CUPTI's call.
        unsafe { self.on_known_call(thread, (domain, id), data, registers) }
    }

    /// Handles a call of [`IDS`]: one that launches, or that launches depend on.
    ///
    /// # Safety
    /// As for [`Run::on_call`].
    #[inline(always)]
    pub(super) unsafe fn on_known_call(
        &self,
        thread: &'static ThisThread,
        (domain, id): CallbackId,
        data: &CallbackData,
        registers: &Pushed,
    ) {
        let Some(index) = calls::index_of(domain, id) else { return self.agent.count_unexpected() };
        let Some(submits) = calls::submits(index) else {
            // SAFETY: the caller promises that `data` is CUPTI's for this call.
            return unsafe { self.on_preparation(IDS[index].call, data) };
        };
        match data.site {
            SITE_ENTER => {
                let entered = Entered {
                    call: index,
                    layer: if domain == domain::DRIVER { Layer::Driver } else { Layer::Runtime },
                    submits,
                    correlation: data.correlation_id,
                    name: data.function_name,
                    symbol: data.symbol_name,
                    registers,
                };
                // SAFETY: the caller promises that `data` is CUPTI's for this call, whose strings and parameters are
                // valid until it returns, and the registers at CUPTI's call.
                unsafe { launch::enter(thread, self.agent, &entered, || self.submission(IDS[index].call, data)) };
            }
            SITE_EXIT => {
                let returned = Returned {
                    call: index,
                    submits,
                    correlation: data.correlation_id,
                    result: result(data),
                    context: context(data),
                };
                // SAFETY: the caller promises that `data` is CUPTI's for this call, which is about to return: the
                // strings that it began with are still valid.
                if unsafe { launch::exit(thread, self.agent, &returned) } {
                    self.backend.on_outermost_exit(self.agent);
                }
            }
            _ => self.agent.count_unexpected(),
        }
    }

    /// # Safety
    /// `data` is CUPTI's for this call.
    #[inline(always)]
    unsafe fn submission(&self, call: CallRole, data: &CallbackData) -> Submission {
        // SAFETY: the caller's promise: CUPTI's parameters of this very call.
        let params = unsafe { calls::params(call, data.function_params) };
        let shape = params.unwrap_or_default();
        let records = match (params, shape.graph) {
            (None, _) => call.submits().map_or(Records::Possible, Records::of_any),
            (Some(it), 0) => it.records,
            // Of an empty one, too.
            (Some(_), _) if self.backend.records_whole_graphs() => Records::Certain,
            (Some(_), graph) => self.backend.graphs.kernels_of(graph),
        };
        let may_be_captured = self.backend.open_captures.load(Ordering::Relaxed) != 0;
        Submission {
            context: context(data),
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared_bytes,
            stream: params.map(|it| it.stream),
            is_captured: may_be_captured && params.is_some_and(|it| self.backend.driver.is_capturing(it.stream)),
            records,
        }
    }

    /// Handles a call that launches nothing but affects what launches mean, or whether they are recorded.
    ///
    /// # Safety
    /// `data` is CUPTI's for this call.
    #[cold]
    unsafe fn on_preparation(&self, call: CallRole, data: &CallbackData) {
        let CuptiBackend { open_captures, graphs, driver, .. } = self.backend;
        let done = data.site == SITE_EXIT;
        let succeeded = done && result(data) == 0;
        match call {
            CallRole::BeginCapture if succeeded => {
                open_captures.fetch_add(1, Ordering::AcqRel);
            }
            CallRole::EndCapture if done => {
                let less = |it: u32| it.checked_sub(1);
                let _ = open_captures.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
            }
            CallRole::InstantiateGraph if succeeded && !self.backend.records_whole_graphs() => {
                // SAFETY: the caller promises that `data` is CUPTI's for this call, which is of this kind.
                if let Some((exec, graph)) = unsafe { calls::instantiated(data.function_params) } {
                    graphs.made(exec, graph, driver);
                }
            }
            // Before the call: once it has returned, another thread's graph may have the handle.
            CallRole::DestroyGraph if !done => {
                // SAFETY: as above.
                unsafe { calls::graph_of(data.function_params) }.into_iter().for_each(|it| graphs.forget(it));
            }
            CallRole::SwitchNode if !done => {
                // SAFETY: as above.
                unsafe { calls::graph_of(data.function_params) }.into_iter().for_each(|it| graphs.switched(it));
            }
            // Whatever it returns: under tools, CUDA refuses the call.
            CallRole::StartProfiler if done => self.agent.profiler_switched(true),
            CallRole::StopProfiler if !done => self.agent.profiler_switched(false),
            _ => {}
        }
    }
}
