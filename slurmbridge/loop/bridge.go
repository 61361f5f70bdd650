package loop

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// Journal keeps what must survive a restart, and what people ask about later.
type Journal interface {
	// Load returns the unfinished groups and the rest of the tracker; with an error the part that could be read, nil =
	// none.
	Load(ctx context.Context) (*tracker.Tracker, error)
	// SaveGroup stores a group by its ID.
	SaveGroup(ctx context.Context, g *job.Group) error
	// SaveTracker stores the tracker without its groups.
	SaveTracker(ctx context.Context, t *tracker.Tracker) error
	// Log records one applied (or, in shadow, intended) change and its outcome; groups are the jobs' by ref.
	Log(ctx context.Context, at time.Time, mode job.Mode, groups map[string]int64, c *job.Change, outcome error) error
	// SaveExplanations stores the newest explanation of each job.
	SaveExplanations(ctx context.Context, explanations map[string]*job.Explanation) error
	// RecordRuns stores what a poll showed of runs, and how the ended runs in left ended. The status holds the poll and
	// what was known before it.
	RecordRuns(ctx context.Context, st *job.Status, left []tracker.Left) error
	// RecordPoll stores what else a poll showed and led to, for the receipt and the status page.
	RecordPoll(ctx context.Context, st *job.Status) error
}

// Bridge is the loop.
type Bridge struct {
	Slurm   job.Slurm
	Planner *plan.Planner
	Gate    *Gate
	Apps    Apps
	// Models returns the GPU models that records have named, nil = none yet (see job.NameModels), and the nodes whose
	// driver can't limit an MPS client's memory (see plan.Input.NoLimits).
	Models  func(ctx context.Context) (of map[job.GPUAddr]string, noLimits map[string]bool)
	Journal Journal
	// Runs and Beliefs let the bridge learn from runs; nil = it doesn't learn.
	Runs    history.Runs
	Beliefs *interference.Model
	// RetryAlone lets a job that failed because it shared run again, alone; see history.Outcome.Ours and job.Terms.Retry.
	RetryAlone bool
	// Sessions selects the interactive sessions.
	Sessions job.Sessions
	// AppNames are the site's names for applications, by patterns of job names.
	AppNames []job.AppName
	// ExtendLimit lets running jobs have more time where sharing makes them miss their limits.
	ExtendLimit bool
	// PastMaxTime lets them have it even beyond their partitions' MaxTime.
	PastMaxTime bool
	// IdleAfter is how long a job must not have used its GPUs to count as idle, 0 = none does.
	IdleAfter time.Duration
	// Adopt says which jobs of a whole GPU may share; nil = none.
	Adopt   *adopt.Policy
	Specs   plan.Specs
	Mode    job.Mode
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
	// PollEvery is the longest time between two polls.
	PollEvery time.Duration
	// WakeDelay is how long after an event the bridge polls. Default 5 ms: a group that is released before the node's
	// Epilog ends starts with it, a later one with Slurm's next look at its queue. Events that come during a tick are one
	// poll.
	WakeDelay time.Duration
	// Fault is called between the steps of a tick, for tests that kill the bridge there; nil = none.
	Fault func(step string)

	tracker *tracker.Tracker // nil = not loaded yet
	wake    chan struct{}
	once    sync.Once
	apps    *identifier
	learned learned
	// described is what Slurm has said of jobs by name in this round.
	described map[string]job.Description
	comments  *comments
	failures  int    // polls in a row
	standby   string // the daemon that keeps the gate instead of this one, "" = none does
	// complaints holds what complain logged last, by subject.
	complaints map[string]string
	maxDelay   float64 // of any job so far, s
	// thought is how long the last round took to poll and plan.
	thought time.Duration
	// bounds are the operators' bounds as of boundsAt; nil = not known.
	bounds   *job.Bounds
	boundsAt time.Time
	// nearLimit: a job that shares comes near its time limit.
	nearLimit bool
	status    atomic.Pointer[job.Status]
	health    job.HealthState // as it was last logged
	idle      idleReports
	rules     *adopt.Policy // Adopt as it was configured
	optedOut  bool          // the file of adopt_opt_out has been read
}

func (b *Bridge) init() {
	b.once.Do(func() {
		b.wake = make(chan struct{}, 1)
		b.complaints = map[string]string{}
		if b.Now == nil {
			b.Now = time.Now
		}
		if b.WakeDelay == 0 {
			b.WakeDelay = 5 * time.Millisecond
		}
		if b.Log == nil {
			b.Log = slog.New(slog.DiscardHandler)
		}
		if b.Metrics == nil {
			b.Metrics = NewMetrics(prometheus.NewRegistry())
		}
		if b.Gate != nil {
			b.Gate.Log = cmp.Or(b.Gate.Log, b.Log)
		}
		b.apps = newIdentifier(b)
		b.comments = &comments{slurm: b.Slurm, metrics: b.Metrics, now: b.Now, log: b.Log, said: map[string]string{}}
	})
}

// Wake requests a poll soon. It never blocks.
func (b *Bridge) Wake() {
	b.init()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// TakeIdle stores a node's report of jobs that don't use their GPUs or share one without MPS. It may be called at any
// time.
func (b *Bridge) TakeIdle(r *gpuprof.IdleReport) {
	b.init()
	b.idle.take(r, b.Now())
}

// Status returns the state after the last poll; nil before the first.
func (b *Bridge) Status() *job.Status { return b.status.Load() }

// Fresh returns the age up to which the last successful poll counts as fresh.
func (b *Bridge) Fresh() time.Duration { return 3 * b.PollEvery }

// acting returns the mode of this round: a standby daemon changes nothing.
func (b *Bridge) acting() job.Mode {
	if b.standby != "" {
		return job.Shadow
	}
	return b.Mode
}

// lease returns how long the gate stays closed without another renewal.
func (b *Bridge) lease() time.Duration {
	if b.acting() != job.Active {
		return 0
	}
	return b.Gate.Left()
}

func (b *Bridge) fault(step string) {
	if b.Fault != nil {
		b.Fault(step)
	}
}

// complain logs an error on a subject once, until the error changes or is gone (nil).
func (b *Bridge) complain(of string, err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != "" && said != b.complaints[of] {
		b.Log.Error(of, "err", err)
	}
	b.complaints[of] = said
}

// logged logs an error of the journal, if there is one.
func (b *Bridge) logged(err error) {
	if err != nil {
		b.Log.Error("journal", "err", err)
	}
}
