package loop

import (
	"errors"
	"maps"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the bridge's metrics, under the prefix slurmbridge_. None is per job or per
// user, and accounts are bounded: the number of series doesn't grow with the load.
type Metrics struct {
	pollTime, planTime, groupSize, delay, skew, predicted, seen, startAfterS prometheus.Histogram
	gateErrors, considered, broken                                           prometheus.Counter
	lastPoll, lease, delayMax, fallback, idleJobs, idleGPUs, withoutMPS      prometheus.Gauge
	jobs, gpus, health, misread, notAdopted, info, saved, lost               *prometheus.GaugeVec
	polls, groups, members, changes, cmdErrors, unmanaged                    *prometheus.CounterVec
	turnaround, records, contracts, suspects, learned, harmed, used          *prometheus.CounterVec
	commands                                                                 *prometheus.HistogramVec
	refused                                                                  *prometheus.GaugeVec

	// The queue's jobs that unmanaged and considered have counted.
	ungated, inCompany map[string]bool
	// usedBefore is what the last report to Used said, by account and kind of use, s. accounts have series of their own.
	usedBefore map[[2]string]float64
	accounts   map[string]bool
}

const refusedHelp = "Changes of jobs that Slurm, or a plugin of the site's, refused, by step and by the name of " +
	"Slurm's error (SLURM_ERROR: a plugin didn't say which; not-done: it was taken, and the job was not so; other: an " +
	"error without a name). A series ends a day after its last change."

// NewMetrics registers the bridge's metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := factory{promauto.With(reg)}
	slow := []float64{1, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 3, 5}
	return &Metrics{
		ungated: map[string]bool{}, inCompany: map[string]bool{},
		polls: counters(r, "polls_total",
			"Polls of Slurm's queue and nodes, by result (ok, error: Slurm didn't answer or its answer could not be read).",
			"result", "ok", "error"),
		pollTime: r.histogram("poll_duration_seconds", "Duration of a successful poll of Slurm's queue and nodes.",
			prometheus.ExponentialBuckets(0.005, 2, 12)),
		lastPoll: r.gauge("last_poll_timestamp_seconds", "Unix time of the last successful poll; 0 = none yet."),
		planTime: r.histogram("plan_duration_seconds", "Duration of a decision after a poll.",
			prometheus.ExponentialBuckets(0.0001, 4, 10)),
		jobs: r.gauges("jobs",
			"Jobs that may share, by state: waiting (for a decision, behind the gate), released (in a group that Slurm may "+
				"start), running (in a group).", "state"),
		gpus: r.gauges("gpus", "GPUs, by use: idle, single (one job), shared (several jobs); out-of-service (of those with "+
			"shares), no-shares (the bridge leaves them alone).", "use"),
		health: r.gauges("health", "1 for the state that the bridge is in, 0 for the others: well, impaired (jobs share, "+
			"and something needs an admin), down (no job can be made to share). slurmbridge status says why.", "state"),
		groups: counters(r, "groups_total",
			"Groups of jobs that were released, by kind: start (on an idle GPU), join (next to running jobs), turn (one job, "+
				"when Slurm comes to it). None in shadow mode.", "kind", job.StartNow, job.Join, job.Turn),
		groupSize: r.histogram("group_size_jobs", "Jobs in a released group, without the running jobs that it joins.",
			[]float64{1, 2, 3, 4, 5, 8}),
		members: counters(r, "group_members_total",
			"What happened to jobs in released groups: started, ended, requeued (by Slurm or the owner), owner (edited by "+
				"its owner, unmanaged since), stuck (restored: it did not start), partial (restored while others of its group "+
				"run), passed-over (restored: Slurm says why it is pending), left (left to Slurm: it did not start twice), "+
				"limit (restored: it is beyond a limit of accounting), misplaced (on another GPU than planned).", "outcome",
			"started", "ended", "requeued", "owner", "stuck", "partial", "passed-over", "left", "limit", "misplaced"),
		changes: r.auto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "slurmbridge", Name: "changes_total",
			Help: "Updates of jobs sent to Slurm, by step (prepare, release, restore, let-go, gate, extend, comment) and " +
				"result (ok, gone: the job had ended or started, refused, down: Slurm did not answer).",
		}, []string{"step", "result"}),
		commands: r.auto.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "slurmbridge", Name: "slurm_command_duration_seconds",
			Help:    "Time that Slurm's commands took (squeue, scontrol and so on), failed ones as well.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12), NativeHistogramBucketFactor: nativeFactor,
		}, []string{"command"}),
		cmdErrors: counters[string](r, "slurm_command_errors_total", "Slurm's commands that failed, by command.", "command"),
		lease: r.gauge("gate_lease_left_seconds",
			"How long after the last poll the gate stays closed without renewal; 0 or less: it is open and waiting jobs "+
				"start alone. 0 in shadow mode, which has no gate."),
		gateErrors: r.counter("gate_errors_total", "Failures to create or renew the gate."),
		notAdopted: r.gauges("adopt_barred",
			"What isn't adopted for a week because jobs were slower than the contract of their rule: applications (of a "+
				"user), and rules (two jobs of an account within a day).", "what"),
		misread: r.gauges("slurm_misread",
			"1 for each field of squeue's that says of the gate what isn't so: this release of Slurm's is not "+
				"understood, and nothing is grouped. None otherwise.", "field"),
		refused: r.gauges("refused_changes", refusedHelp, "step", "error"),
		unmanaged: counters(r, "jobs_unmanaged_total",
			"Jobs that requested sharing and were ungated, to run as without the bridge, by reason: exclusive, features, "+
				"size and so on; not-started: it was released twice and did not start; left: see slurmbridge status.", "reason",
			job.UngatedReasons()...),
		considered: r.counter("jobs_considered_total",
			"Jobs that were considered together with others, or next to running ones, with any result."),
		delay: r.histogram("added_delay_seconds",
			"Time for which only the bridge has kept a job waiting, next to an idle GPU or with a change that came to "+
				"nothing, in all so far, observed at each poll while it grows.", prometheus.ExponentialBuckets(0.25, 2, 12)),
		delayMax: r.gauge("added_delay_max_seconds",
			"Longest time for which the bridge alone has kept any job waiting although a GPU was idle, since the daemon "+
				"started."),
		skew: r.histogram("costart_skew_seconds",
			"Time between the first and the last start in a group, from the nodes' records.",
			[]float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30}),
		predicted: r.histogram("predicted_slowdown_ratio",
			"Predicted slowdown of each job released with others: run time together over run time alone (1 = as fast as alone).",
			slow),
		seen: r.histogram("seen_slowdown_ratio",
			"Measured slowdown of each job that shared: its run time over that of its application alone (1 = as fast as alone).",
			slow),
		turnaround: counters(r, "turnaround_seconds_total",
			"Time from submission to end, s, of all jobs that ended and whose end on plain Slurm is known, on: slurmbridge "+
				"(as it was), plain (as it would have been, an estimate). What was saved is 1 - slurmbridge/plain.", "on",
			"slurmbridge", "plain"),
		broken: r.counter("policy_broken_total",
			"Decisions in which the policy's answer was not a number; the next policy (srpt, then exclusive) has decided "+
				"since."),
		fallback: r.gauge("policy_fallback",
			"1 while another policy decides than the configured one, whose model can't be read or gave an answer that is not "+
				"a number; 0 otherwise."),
		records: counters(r, "records_total",
			"Records of jobs that nodes sent, by result: new, duplicate (sent twice, kept once), refused (its sender is not "+
				"authenticated, or it is impossible), failed (it could not be stored; the node tries again).", "result", "new",
			"duplicate", "refused", "failed"),
		info: r.gauges("info",
			"Always 1; says which mode (active, shadow, standby: another daemon decides), policy and model are in use, and "+
				"Slurm's release.", "mode", "policy", "model", "slurm"),
		startAfterS: r.histogram("start_latency_seconds",
			"Time from the moment a group could start until its first job ran, with Slurm's own part.",
			prometheus.ExponentialBuckets(0.1, 2, 10)),
		contracts: counters(r, "contracts_total",
			"Shared runs of jobs with a limit on their slowdown (share:max-slowdown, max_slowdown), by result: kept, broken "+
				"(slower than the limit).", "result", "kept", "broken"),
		suspects: counters(r, "shared_failures_total",
			"Jobs that failed, or ran out of time, while sharing and whose co-runners may be the reason, out of memory most "+
				"of all, by what was done: again (run again, alone), left.", "done", "again", "left"),
		harmed: counters(r, "jobs_harmed_total",
			"Jobs that are worse off than on plain Slurm, by kind: timeout, deadline (ended at their time limit or deadline; "+
				"alone they would have ended before), oom (failed while sharing, out of memory most of all), late (ended well "+
				"after plain Slurm would have ended them), contract (slower than their limit on slowdowns), held (kept waiting "+
				"by the bridge for longer than it may), lost (unknown to Slurm after the bridge changed them). A job may count "+
				"for several.", "kind", history.Harms()...),
		idleJobs: r.gauge("idle_jobs",
			"Running jobs that have done nothing with their GPUs for idle_after, by the nodes' agents."),
		idleGPUs: r.gauge("idle_gpus", "GPUs that those jobs hold, shares as parts of one."),
		withoutMPS: r.gauge("sharers_without_mps",
			"Running jobs that share a GPU and have a process on it that computes without MPS, by the nodes' agents."),
		used: r.auto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "slurmbridge", Name: "usage_gpu_seconds_total",
			Help: "GPU-seconds by account, shares as parts of a GPU: held, computed (the part of that time in which kernels " +
				"ran), beyond (computed on top of the shares held, while co-runners didn't compute), idle (held, and nothing " +
				"done for ten minutes or more), shared (with another job on the GPU). All but held is known when a job has " +
				"ended. Thirty accounts have series, the largest of the day before the daemon started first; the others are " +
				"one, and all are one where Slurm hides others' usage.",
		}, []string{"account", "what"}),
		usedBefore: map[[2]string]float64{}, accounts: map[string]bool{},
		saved: r.gauges("usage_wait_saved_seconds",
			"By how much less the jobs of the last 24 hours waited than on plain Slurm, by account; it may be negative.",
			"account"),
		lost: r.gauges("usage_time_lost_seconds",
			"By how much longer the jobs of the last 24 hours ran for sharing a GPU, by account; it may be negative.",
			"account"),
		learned: counters(r, "lessons_total",
			"Runs that taught something, by what: profile (an application alone), company (a slowdown next to co-runners).",
			"what", "profile", "company"),
	}
}

// nativeFactor is how far apart the buckets of native histograms are, which Prometheus takes in place of the fixed ones
// where it is configured to.
const nativeFactor = 1.1

// factory makes registered metrics.
type factory struct{ auto promauto.Factory }

// counters makes a counter by the values of a label. The series of the given values begin at 0: a counter that begins
// with 1 has no rate.
func counters[S ~string](r factory, name, help, label string, values ...S) *prometheus.CounterVec {
	c := r.auto.NewCounterVec(prometheus.CounterOpts{Namespace: "slurmbridge", Name: name, Help: help}, []string{label})
	for _, v := range values {
		c.WithLabelValues(string(v))
	}
	return c
}

func (r factory) counter(name, help string) prometheus.Counter {
	return r.auto.NewCounter(prometheus.CounterOpts{Namespace: "slurmbridge", Name: name, Help: help})
}

func (r factory) gauge(name, help string) prometheus.Gauge {
	return r.auto.NewGauge(prometheus.GaugeOpts{Namespace: "slurmbridge", Name: name, Help: help})
}

func (r factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return r.auto.NewGaugeVec(prometheus.GaugeOpts{Namespace: "slurmbridge", Name: name, Help: help}, labels)
}

func (r factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return r.auto.NewHistogram(prometheus.HistogramOpts{
		Namespace: "slurmbridge", Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: nativeFactor,
	})
}

// Command observes one run of one of Slurm's commands.
func (m *Metrics) Command(command string, took time.Duration, err error) {
	m.commands.WithLabelValues(command).Observe(took.Seconds())
	failed := m.cmdErrors.WithLabelValues(command)
	if err != nil {
		failed.Inc()
	}
}

// Record counts a record from a node: new, duplicate, refused or failed.
func (m *Metrics) Record(result string) {
	m.records.WithLabelValues(result).Inc()
}

// Skew observes the time between the first and the last start in a group.
func (m *Metrics) Skew(d time.Duration) {
	if m != nil {
		m.skew.Observe(d.Seconds())
	}
}

// outcome counts the outcome of a run.
func (m *Metrics) outcome(r *history.Run) {
	o := r.Outcome
	if r.Shared() && o.Slowdown > 0 {
		m.seen.Observe(o.Slowdown)
		switch {
		case o.Broken:
			m.contracts.WithLabelValues("broken").Inc()
		case o.Contract > 0:
			m.contracts.WithLabelValues("kept").Inc()
		}
	}
	if s, plain, ok := r.Turnaround(); ok {
		m.turnaround.WithLabelValues("slurmbridge").Add(s)
		m.turnaround.WithLabelValues("plain").Add(max(0, plain))
	}
	for _, kind := range r.Harm() {
		m.harmed.WithLabelValues(string(kind)).Inc()
	}
	switch {
	case o.Again:
		m.suspects.WithLabelValues("again").Inc()
	case o.Suspect != "":
		m.suspects.WithLabelValues("left").Inc()
	}
	if o.Learned {
		m.learned.WithLabelValues("profile").Inc()
	}
	if len(o.Lessons) > 0 {
		m.learned.WithLabelValues("company").Inc()
	}
}

func (m *Metrics) polled(took time.Duration) {
	m.polls.WithLabelValues("ok").Inc()
	m.pollTime.Observe(took.Seconds())
	m.lastPoll.SetToCurrentTime()
}

func (m *Metrics) pollFailed() {
	m.polls.WithLabelValues("error").Inc()
}

func (m *Metrics) released(g *job.Group) {
	m.groups.WithLabelValues(string(g.Kind)).Inc()
	m.groupSize.Observe(float64(len(g.Members)))
	for i := range g.Members {
		slowdown := g.Members[i].Predicted
		if slowdown > 0 && (len(g.Members) > 1 || g.Kind == job.Join) {
			m.predicted.Observe(slowdown)
		}
	}
}

func (m *Metrics) changed(step string, err error) {
	result := "ok"
	switch {
	case errors.Is(err, job.ErrNoJob):
		result = "gone"
	case errors.Is(err, job.ErrDown):
		result = "down"
	case err != nil:
		result = "refused"
	}
	m.changes.WithLabelValues(step, result).Inc()
}

func (m *Metrics) event(e tracker.Event) {
	m.members.WithLabelValues(string(e.Kind)).Inc()
	if e.Kind == tracker.EventLeft {
		m.unmanaged.WithLabelValues(string(job.UngatedNotStarted)).Inc()
	}
	if e.Kind != tracker.EventStarted || e.Group.Free.IsZero() {
		return
	}
	for i := range e.Group.Members {
		member := &e.Group.Members[i]
		if member.Ref == e.Ref && !member.Start.IsZero() {
			m.startAfterS.Observe(max(0, member.Start.Sub(e.Group.Free).Seconds()))
		}
	}
}

// healthy exports the state of health.
func (m *Metrics) healthy(now job.HealthState) {
	for _, state := range job.HealthStates() {
		on := 0.0
		if state == now {
			on = 1
		}
		m.health.WithLabelValues(string(state)).Set(on)
	}
}

// sharers counts the jobs that were ungated and the jobs that were considered together with others, each once.
func (m *Metrics) sharers(st *job.Status) {
	for ref, why := range st.Plan.Ungated {
		if !m.ungated[ref] {
			m.unmanaged.WithLabelValues(string(why)).Inc()
		}
		m.ungated[ref] = true
	}
	for ref := range st.Plan.InCompany {
		if !m.inCompany[ref] {
			m.considered.Inc()
		}
		m.inCompany[ref] = true
	}
	here := make(map[string]bool, len(st.Snap.Jobs))
	for i := range st.Snap.Jobs {
		here[st.Snap.Jobs[i].Ref] = true
	}
	isGone := func(ref string, _ bool) bool { return !here[ref] }
	maps.DeleteFunc(m.ungated, isGone)
	maps.DeleteFunc(m.inCompany, isGone)
}

func (m *Metrics) state(st *job.Status) {
	m.lease.Set(st.Lease.Seconds())
	m.sharers(st)
	m.notAdopted.WithLabelValues("applications").Set(float64(st.BarredApps))
	m.notAdopted.WithLabelValues("rules").Set(float64(st.StoppedRules))
	m.misread.Reset()
	for _, bad := range st.Misread {
		m.misread.WithLabelValues(bad.Field).Set(1)
	}
	m.refused.Reset()
	for i := range st.Refused {
		m.refused.WithLabelValues(string(st.Refused[i].Step), st.Refused[i].Code).Set(float64(st.Refused[i].Times))
	}
	m.delayMax.Set(st.MaxDelayS)
	m.jobs.WithLabelValues("waiting").Set(float64(st.Waiting))
	released, running := 0, 0
	for i := range st.Groups {
		for k := range st.Groups[i].Members {
			member := &st.Groups[i].Members[k]
			switch {
			case member.State.Final():
			case member.Ran():
				running++
			default:
				released++
			}
		}
	}
	m.jobs.WithLabelValues("released").Set(float64(released))
	m.jobs.WithLabelValues("running").Set(float64(running))
	use := map[string]int{"idle": 0, "single": 0, "shared": 0}
	for i := range st.Plan.Running.GPUs {
		switch len(st.Plan.Running.GPUs[i].Running) {
		case 0:
			use["idle"]++
		case 1:
			use["single"]++
		default:
			use["shared"]++
		}
	}
	use["out-of-service"] = st.Shareable.WithParts - st.Shareable.Up
	use["no-shares"] = st.Shareable.All - st.Shareable.WithParts
	for k, v := range use {
		m.gpus.WithLabelValues(k).Set(float64(v))
	}
	held := 0.0
	for i := range st.Idle {
		held += st.Idle[i].GPUs
	}
	m.idleJobs.Set(float64(len(st.Idle)))
	m.idleGPUs.Set(held)
	m.withoutMPS.Set(float64(len(st.WithoutMPS)))
	m.fallback.Set(0)
	if st.Wanted != "" && st.Policy != st.Wanted {
		m.fallback.Set(1)
	}
	m.info.Reset()
	mode := string(st.Mode)
	if st.Standby != "" {
		mode = "standby"
	}
	m.info.WithLabelValues(mode, st.Policy, st.Model, st.Snap.Release).Set(1)
}

// mostAccounts is how many accounts have series of their own; the rest share one.
const mostAccounts = 30

// otherAccounts is the label of the rest. No account has this name, since it contains a blank.
const otherAccounts = "(all others)"

// account is the label of a line of a report.
func (m *Metrics) account(l *usage.Line, hidden bool) string {
	name := l.Label()
	if hidden || !m.accounts[name] && len(m.accounts) >= mostAccounts {
		return otherAccounts
	}
	m.accounts[name] = true
	return name
}

// Used counts by how much the use of the GPUs by account has grown since the last report, whose period began at the
// same time: what a job used comes with its end, and belongs to hours before. A period's first report counts nothing.
// hidden: without the accounts' names.
func (m *Metrics) Used(r *usage.Report, first, hidden bool) {
	if m == nil {
		return
	}
	if first {
		clear(m.usedBefore)
	}
	if r == nil {
		return
	}
	sums := map[[2]string]float64{}
	for i := range r.Lines {
		l := &r.Lines[i]
		name := m.account(l, hidden)
		for what, hours := range map[string]*float64{
			"held": &l.Held, "computed": l.Computed, "beyond": l.Beyond, "idle": l.Idle, "shared": l.Shared,
		} {
			if hours != nil {
				sums[[2]string{name, what}] += 3600 * *hours
			}
		}
	}
	for key, sum := range sums {
		series := m.used.WithLabelValues(key[0], key[1])
		if more := sum - m.usedBefore[key]; more > 0 {
			m.usedBefore[key] = sum
			if !first {
				series.Add(more)
			}
		}
	}
}

// Waits exports what the jobs of the last day waited less and ran longer, by account; hidden: without their names.
func (m *Metrics) Waits(r *usage.Report, hidden bool) {
	if m == nil {
		return
	}
	m.saved.Reset()
	m.lost.Reset()
	if r == nil {
		return
	}
	for i := range r.Lines {
		l := &r.Lines[i]
		name := m.account(l, hidden)
		if l.WaitSaved != nil {
			m.saved.WithLabelValues(name).Add(3600 * *l.WaitSaved)
		}
		if l.TimeLost != nil {
			m.lost.WithLabelValues(name).Add(3600 * *l.TimeLost)
		}
	}
}
