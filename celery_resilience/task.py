"""ResilientTask: a Celery task that always ends in one known place.

Inherit it, or set `task_cls=ResilientTask` for a whole app. Options are class attributes or decorator keywords:
`retry_policy`, `deadline_seconds`, `failure_rules`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from billiard import current_process
from billiard.einfo import ExceptionInfo
from celery import Celery, Task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.exceptions import Retry as CeleryRetry
from celery.signals import task_retry
from celery.utils.time import maybe_make_aware
from kombu.utils.uuid import uuid

from . import worker
from .admission import Admission, Refused
from .attempts import HEADER, Attempts, read_attempts
from .breaker import CircuitBreaker
from .deadletter import DeadLetter
from .decision import DeadLetter as End
from .decision import Retry
from .ending import watch_failures
from .errors import BreakerOpenError, LimitReachedError, ProcessExitError
from .failure import FailureClass
from .gates import BreakerOption, RateOption, WhenOpen
from .onward import Plan, heals, lineage_of
from .outcome import REFUSED, Outcome, celery_retry
from .policy import PolicyOption, policies_from
from .runtime import Runtime, runtime_here, runtime_of
from .sending import BODY, CALL, ENDED, STAGE, check_room
from .settings import check_call_options
from .task_options import check_options, gates_of, option

BUILT_IN = "celery."
MAIN = "MainProcess"
COUNT = "x-delivery-count"  # of a quorum queue
STORE = "_resilience_store"  # on a request: what a signature made by retry() does instead of publishing


Body = Callable[..., Any]


def _as_attempt(body: Body, otherwise: Body) -> Body:
    """Make a `__call__` that runs `body` as one attempt in a worker, and `otherwise` anywhere else.

    A first delivery that succeeds pays for nothing here but the `try`. Deciding is left to Outcome and raising is done
    here, because each frame between Celery and the exception costs more than the decision.
    """

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  # it becomes the method of that name
        request = self.request_stack.top
        if request is None or request.called_directly or self._is_built_in or STAGE in request.__dict__:
            return otherwise(self, *args, **kwargs)
        request.__dict__[STAGE] = CALL
        request._protected = 1  # a call of itself from within the body is a plain call to Celery
        if request.is_eager:
            return self._attempt_eagerly(body, request, args, kwargs)
        if HEADER in request.__dict__ or request.delivery_info.get("redelivered") or COUNT in request.__dict__:
            return self._attempt_again(body, request, args, kwargs)
        if not (self._plan or self._make_plan())[1].gates.is_open_way:
            return self._attempt_gated(body, self._outcome(request), args, kwargs)
        try:
            return body(self, *args, **kwargs)
        except Exception as error:
            instead = self._outcome(request).settle(error)
            if instead is None:
                raise
            raise instead from error

    return __call__


def _run(task: ResilientTask, *args: Any, **kwargs: Any) -> Any:
    request: Any = task.request_stack.top
    request.__dict__[STAGE] = BODY
    try:
        return task.run(*args, **kwargs)
    except SystemExit as leave:
        if current_process().name != MAIN or isinstance(leave, (WorkerShutdown, WorkerTerminate)):
            raise  # a pool process of its own, which ends; or the worker itself was told to
        raise ProcessExitError from leave  # threads and greenlets share their process with other tasks
    finally:
        request.__dict__[STAGE] = ENDED


def _ending(own_call: Body) -> Body:
    """Note the end of a subclass' own `__call__`, which may never come to ours."""

    def run(task: ResilientTask, *args: Any, **kwargs: Any) -> Any:
        request: Any = task.request_stack.top
        try:
            return own_call(task, *args, **kwargs)
        finally:
            request.__dict__[STAGE] = ENDED

    return run


def _run_within(task: ResilientTask, *args: Any, **kwargs: Any) -> Any:
    """Run for a subclass whose own `__call__` is the attempt, or as the plain call that it is."""
    request: Any = task.request_stack.top
    if request is not None and request.__dict__.get(STAGE) == CALL:
        return _run(task, *args, **kwargs)
    return Task.__call__(task, *args, **kwargs)


class ResilientTask(Task):  # type: ignore[type-arg]  # a base class for tasks of any signature
    """A task whose failures are classified, and tried again as their class and policy say.

    `retry_policy` is a RetryPolicy or a mapping {FailureClass: RetryPolicy}; `deadline_seconds` ends all attempts;
    `failure_rules` put this task's exceptions into classes. Messages are acked late, after their outcome is stored.
    """

    abstract = True
    acks_late = True
    Request = "celery_resilience.worker.request:ResilientRequest"
    Strategy = "celery_resilience.worker.strategy:resilient"

    retry_policy: PolicyOption = None
    deadline_seconds: float | None = None
    failure_rules: Any = ()
    breaker: BreakerOption = None
    when_open: WhenOpen = "park"
    rate_limit_shared: RateOption = None
    max_concurrent: int | None = None
    max_queue_length: int | None = None
    dlq: bool = True
    when_dead: str = "auto"
    max_crashes: int = 3

    _is_built_in = False
    _plan: tuple[Runtime, Plan] | None = None

    __call__ = _as_attempt(_run, otherwise=_run_within)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own_call = inspect.getattr_static(cls, "__call__")
        if getattr(own_call, "__module__", None) != __name__:
            # An application context or the like: it runs inside the attempt, even if it never calls ours.
            cls.__call__ = _as_attempt(_ending(own_call), otherwise=own_call)  # type: ignore[method-assign]  # of the same kind

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the options and add our part to the app's worker; Celery may call it more than once."""
        super().on_bound(app)
        worker.install(app)
        watch_failures()
        if str(cls.name).startswith(BUILT_IN):
            cls._is_built_in = True
            cls.acks_late = app.conf.task_acks_late
            cls.Request, cls.Strategy = Task.Request, Task.Strategy
        else:
            check_options(cls, ResilientTask)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        resilience: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Send the task; `resilience={"max_attempts": 3, "deadline_seconds": 60}` sets options for this call."""
        self._stamp(resilience, options, positional[0] if positional else None)
        if not self._is_built_in:
            check_room(self, args, kwargs, {**options, **({"task_id": positional[0]} if positional else {})})
        return super().apply_async(args, kwargs, *positional, **options)

    def apply(
        self, args: Any = None, kwargs: Any = None, *positional: Any, resilience: Any = None, **options: Any
    ) -> Any:
        """Run the task here and now; decisions are those of a worker, but nothing sleeps and nothing is stored."""
        self._stamp(resilience, options)
        return super().apply(args, kwargs, *positional, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Ask for another attempt, as in Celery: obeys `max_retries`, `countdown` and `eta`, and spends no attempt."""
        request = self.request
        if request.called_directly or self._is_built_in:
            return super().retry(*args, **options)
        if request.is_eager:
            return self._retry(dict(inspect.signature(Task.retry).bind(None, *args, **options).arguments))
        outcome = Outcome(self, request, runtime_of(self.app), self._plan_of(self.app))
        given = dict(inspect.signature(Task.retry).bind(None, *args, **options).arguments)
        extra = given.get("options", {})
        attempts = outcome.travelling(outcome.started(outcome.runtime.clock.time()).after_asking())
        if extra:
            extra["headers"] = {**(request.headers or {}), **extra.get("headers", {}), HEADER: attempts.to_header()}
        else:
            is_changed = given.get("args") is not None or given.get("kwargs") is not None
            request.__dict__[STORE] = partial(self._store_retry, outcome, attempts, given.get("exc"), is_changed)
        limit = given.get("max_retries")
        limit = self.max_retries if limit is None else limit
        if limit is not None:  # Celery counts every run; ours of other kinds must not use up the user's limit
            given["max_retries"] = limit + request.retries - outcome.attempts.asked
        return self._retry(given)

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after each failed attempt that another follows; override it freely.

        Celery's own frame weighs more than the rest of what goes back to the parent process, which reads the text only.
        """
        inner = getattr(getattr(einfo, "tb", None), "tb_next", None)
        if inner is not None:
            einfo.tb = inner
        super().on_retry(exc, task_id, args, kwargs, einfo)

    def on_dead_letter(self, letter: DeadLetter) -> None:
        """Called once the letter of a task is stored, when no attempt follows; override it freely, to alert somebody.

        What it raises is logged. Where the process that ran the task died, the worker's parent calls it: be quick.
        """

    def signature_from_request(self, request: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Give the signature that would run this request again; in `retry` it goes to the schedule when applied."""
        signature = super().signature_from_request(request, *args, **kwargs)
        store = (self.request if request is None else request).__dict__.pop(STORE, None)
        if store is not None:
            signature.__dict__["apply_async"] = partial(store, signature)
        return signature

    def guard(self, name: str) -> CircuitBreaker:
        """Give the breaker of a name, for `with self.guard("payments"):` in a body; a refusal there parks the task."""
        return runtime_here(self.app).breaker(name)

    def _attempt_again(self, body: Body, request: Any, args: Any, kwargs: Any) -> Any:
        """Run a message that is not the first of its task, unless it is late, followed, a twin or poison."""
        outcome = self._outcome(request)
        outcome.admit()
        with outcome.on_record():
            return self._attempt_gated(body, outcome, args, kwargs)

    def _attempt_gated(self, body: Body, outcome: Outcome, args: Any, kwargs: Any) -> Any:
        """Run the body as one attempt, if its gates admit it; a refusal parks it, fails it or runs its fallback."""
        admission = Admission(outcome.plan.gates, outcome.runtime, outcome.attempts, lineage_of(outcome.request))
        refused = None
        try:
            refused = admission.enter(args, kwargs)
            if refused is None or admission.has_fallback(refused.error):
                result = self._body_or_fallback(body, admission, refused, args, kwargs)
                refused = None
        except Exception as error:
            instead = outcome.settle(error, admission)
            if instead is None:
                raise
            raise instead from error
        except BaseException:
            admission.cancel()
            raise
        if refused is not None:
            raise outcome.refuse(refused)
        admission.succeeded()
        return result

    def _body_or_fallback(
        self, body: Body, admission: Admission, refused: Refused | None, args: Any, kwargs: Any
    ) -> Any:
        """Run the body; if a breaker refused it, or refuses within it, the fallback where there is one."""
        if refused is None:
            try:
                return body(self, *args, **kwargs)
            except BreakerOpenError as error:
                if not admission.has_fallback(error):
                    raise
                admission.cancel()
        return admission.fall_back(args, kwargs)

    def _attempt_eagerly(self, body: Body, request: Any, args: Any, kwargs: Any) -> Any:
        """Make the attempts one after the other, without waiting and without Redis; a refusal is raised at once."""
        while True:
            outcome = self._outcome(request)
            admission = Admission(outcome.plan.gates, outcome.runtime.eager, outcome.attempts, str(request.id))
            try:
                refused = admission.enter(args, kwargs)
                if refused is not None and not admission.has_fallback(refused.error):
                    raise refused.error
                result = self._body_or_fallback(body, admission, refused, args, kwargs)
                admission.succeeded()
                return result
            except (BreakerOpenError, LimitReachedError):
                admission.cancel()
                raise
            except Exception as error:
                failure = outcome.classify(error)
                admission.failed(failure)
                if failure.failure_class is FailureClass.NOT_A_FAILURE:
                    raise
                match outcome.decide(failure):
                    case Retry(delay):
                        attempts = outcome.after(failure, delay)
                        reason = celery_retry(error, delay, is_eager=True)
                        self.on_retry(error, request.id, request.args, request.kwargs, ExceptionInfo())
                        task_retry.send(sender=self, request=request, reason=reason, einfo=None)
                    case End():
                        raise
            except BaseException:
                admission.cancel()
                raise
            request.__dict__[HEADER] = attempts.to_header()
            request.retries += 1

    def _retry(self, given: dict[str, Any]) -> Any:
        given.pop("self", None)
        extra = given.pop("options", {})
        try:
            return super().retry(**given, **extra)
        except CeleryRetry:
            raise
        except Reject as refused:
            # Celery would throw the message away; what we stored nowhere goes back to its queue, if that can help.
            reason = getattr(refused, "reason", None)
            if isinstance(reason, Reject):
                raise reason from None
            if isinstance(reason, Exception) and not (self.acks_late and heals(reason)):
                self.request.__dict__[REFUSED] = True
                raise reason from None
            raise Reject(reason, requeue=True) from refused
        except Exception:
            self.request.__dict__[REFUSED] = True  # by Celery's limit: the last attempt, whatever the class
            raise

    def _store_retry(self, outcome: Outcome, attempts: Attempts, error: Any, is_changed: bool, signature: Any) -> None:
        options = signature.options
        delay = options.get("countdown")
        if options.get("eta") is not None:
            eta = maybe_make_aware(options["eta"], self.app.timezone)
            delay = (eta - self.app.now()).total_seconds()
        floor = outcome.plan.policies[FailureClass.UNKNOWN].floor_seconds or 0.0
        arguments = (tuple(signature.args), dict(signature.kwargs)) if is_changed else None
        outcome.store(attempts, max(floor, float(delay or 0)), error, arguments)

    def _outcome(self, request: Any) -> Outcome:
        return Outcome(self, request, runtime_of(self.app), self._plan_of(self.app))

    def _plan_of(self, app: Celery) -> Plan:
        """Lay the task's options over the app's, once per process."""
        if self._plan is None or self._plan[0] is not runtime_of(app):
            return self._make_plan()[1]
        return self._plan[1]

    def _make_plan(self) -> tuple[Runtime, Plan]:
        cls, runtime = type(self), runtime_of(self.app)
        deadline = self.deadline_seconds
        gates = gates_of(cls)
        if gates.breaker is None and runtime.settings.default_breaker == "task":
            gates = replace(gates, breaker=cls.name)
        plan = Plan(
            policies=policies_from("retry_policy", self.retry_policy, runtime.policies),
            classifier=runtime.classifier.with_task_rules(option(cls, "failure_rules")),
            deadline_seconds=runtime.settings.deadline_seconds if deadline is None else deadline,
            gates=gates,
        )
        self._plan = (runtime, plan)
        return self._plan

    def _stamp(self, resilience: Mapping[str, Any] | None, options: dict[str, Any], task_id: str | None = None) -> None:
        """Put the options and the deadline of a call into its header, unless it carries one of its own.

        A header of another task, which a body has handed on with its own headers, is left out.
        """
        if self._is_built_in:
            return
        call = check_call_options(resilience) if resilience is not None else {}
        headers = dict(options.get("headers") or {})
        known, task_id = headers.pop(HEADER, None), task_id or options.get("task_id")
        if known is not None and task_id is not None and read_attempts(known).task_id == task_id:
            return
        deadline = call.get("deadline_seconds", self._plan_of(self.app).deadline_seconds)
        if call or deadline is not None:
            if task_id is None:
                task_id = options["task_id"] = uuid()
            at = None if deadline is None else self._start(options) + deadline
            headers[HEADER] = Attempts(task_id=task_id, options=call, deadline_at=at).to_header()
        if headers or known is not None:
            options["headers"] = headers

    def _start(self, options: Mapping[str, Any]) -> float:
        """Give the moment from which a deadline counts: the publish, or the ETA that was asked for."""
        now = runtime_of(self.app).clock.time()
        if options.get("countdown"):
            return now + float(options["countdown"])
        eta: Any = options.get("eta")
        return max(now, maybe_make_aware(eta, self.app.timezone).timestamp()) if hasattr(eta, "timestamp") else now
