// Package job holds the controller's types: Slurm's state (Job, Node, Snapshot), the bridge's (Group, Member, Plan,
// Change, Explanation, Status), and the Slurm interface. All other packages of the controller use them; package job
// imports none of these.
package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// Sharing is the kind of gres that a cluster shares GPUs by.
type Sharing string

// The two kinds. A cluster has one of them; ARCHITECTURE.md says why.
const (
	MPS   Sharing = "mps"
	Shard Sharing = "shard"
)

// Units is the number of shares (gres/mps or gres/shard) of a whole GPU.
const Units = 100

// JobState is a job's base state as squeue's %T prints it.
type JobState string

// The states that the bridge distinguishes; every other state means that the job is over.
const (
	Pending    JobState = "PENDING"
	Running    JobState = "RUNNING"
	Completing JobState = "COMPLETING"
	Suspended  JobState = "SUSPENDED"
)

// Job is one job or array task as one poll showed it.
type Job struct {
	// Ref is how scontrol names the job: "123", or "120_4" for an array task.
	Ref string
	// ID is the job's own number where it has one already: a pending array task that was never split off has its array's.
	ID int64
	// ArrayID is the array's number, 0 for a job that is no array task.
	ArrayID int64
	// ArrayLimit is how many tasks of its array Slurm runs at a time (--array=0-9%2), 0 = any; read of tasks that wait for
	// another job, or the gate.
	ArrayLimit int
	// HetID is the number of the heterogeneous job's leader, 0 for an ordinary job.
	HetID int64

	UID       uint32
	User      string
	Account   string
	QOS       string // "" = the cluster has none
	Name      string
	WorkDir   string // where the script starts
	Partition string // may list several, separated by commas, while pending
	State     JobState
	Reason    string
	Priority  int64
	Tier      int // PriorityTier, the highest of its partitions'
	Submit    time.Time
	// Eligible is the time from which the job may start (its owner's --begin,
	// say); zero = not known, which is what a job with unmet dependencies shows.
	Eligible time.Time
	// Start is when the job started; zero while it is pending.
	Start     time.Time
	TimeLimit time.Duration // 0 = none
	// Deadline is the latest end that its owner allows (--deadline), zero = none: Slurm cancels a
	// pending job that can't meet it, and ends one that runs past it.
	Deadline time.Time

	Request GPURequest
	// Dependency holds the unmet conditions, as squeue prints them.
	Dependency Dependencies
	ReqNodes   string // -w, as a Slurm host list; "" = any
	ExcNodes   string // -x
	Features   string // -C
	Prefers    string // --prefer: features of the nodes on which it starts if one of them is free
	// Reservation names the one that the job runs in, "" = none.
	Reservation string
	Exclusive   Exclusive
	NumNodes    int
	CPUs        int
	// HostMemMiB is the requested memory on one node, MiB; 0 = the default.
	HostMemMiB float64
	// Note is the job_submit script's: which of CPUs and HostMemMiB are defaults, and the job's arguments.
	Note Note
	// MemPerCPU: Slurm takes more memory if it allocates more CPUs than the job requests.
	MemPerCPU bool
	Requeue   bool
	// Expedited: it ended, and Slurm is about to start it again, before all other jobs
	// (--requeue=expedite, from 25.11 on). It is pending.
	Expedited bool
	// TooLong: a field of the job is longer than the bridge reads.
	TooLong bool

	// Nodes names the node a running job is on; GPUs the indexes of its GPUs there (NVML order is another: these are
	// gres.conf's), nil = not known. Of a job on several nodes, Nodes lists them, and ByNode holds its GPUs on each.
	Nodes  string
	GPUs   []int
	ByNode map[string][]int

	// Comment is the owner's --comment, cut after 1,024 bytes. Hostile text. AdminComment is the administrators', cut
	// likewise, without Note.
	Comment, AdminComment string
}

// Exclusive says whose jobs a job keeps off its nodes.
type Exclusive string

// WholeNodes keeps all other jobs off, OneUser the jobs of other users. Slurm has further words. "" = no job.
const (
	WholeNodes Exclusive = "NODE"
	OneUser    Exclusive = "USER"
)

// RequestKind is the kind of a GPU request.
type RequestKind int

// The kinds.
const (
	NoGPU     RequestKind = iota // no GPU
	WholeGPU                     // gpu:1, gpu:titanxp:1, --gpus=… : whole GPUs
	SharedGPU                    // gpu:shared not yet rewritten (no job_submit script, or an update by hand)
	Shares                       // mps:N or shard:N
)

// GPURequest is a parsed GPU request.
type GPURequest struct {
	Kind RequestKind
	// Sharing is set for Shares.
	Sharing Sharing
	// Type is the type of the GPUs, or of the GPU whose shares are requested; "" = any, or several.
	Type string
	// Count is the number of whole GPUs, or of shares.
	Count int
	// PerNode is set for WholeGPU that is requested by --gres or --gpus-per-node and alone there: scontrol can replace it.
	PerNode bool
	// Raw is the request in Slurm's words, e.g. "gres:mps:50" or "gres/mps:50".
	Raw string
}

// Dependency is one condition of a job's dependency list.
type Dependency struct {
	Type string // "after", "afterany", "afterok", …
	Job  string // "123" or "123_4"; "" for singleton
	Rest string // whatever else the term holds, e.g. "+5"
}

// OnEnd reports whether the condition is about how, or that, a job ends.
func (d Dependency) OnEnd() bool {
	return d.Job != "" && (strings.HasPrefix(d.Type, "after") && d.Type != "after")
}

// Dependencies is a job's list of unmet conditions.
type Dependencies struct {
	List []Dependency
	// Or says that any one of them suffices ("?" instead of ","): such a list can't be added to.
	Or bool
	// Raw is the list as Slurm prints it.
	Raw string
}

// Only reports whether the single unmet condition is after:job.
func (d Dependencies) Only(typ, job string) bool {
	return slices.Equal(d.List, []Dependency{{Type: typ, Job: job}})
}

// Has reports whether typ:job is among the unmet conditions.
func (d Dependencies) Has(typ, job string) bool {
	return slices.ContainsFunc(d.List, func(t Dependency) bool { return t.Type == typ && t.Job == job })
}

// Node is a node with GPUs.
type Node struct {
	Name    string
	Up      bool // in service: jobs can start there
	GPUs    int
	GPUType string // gres.conf's Type, "" where it has none
	Sharing Sharing
	Units   int // shares of the whole node, 100 a GPU
	// ByIndex are the GPUs by their indexes where they aren't all alike, nil = they are.
	ByIndex    []GPU
	Partitions []string
	CPUs       int
	CPUsAlloc  int
	// CPUsPerAlloc is how many CPUs Slurm allocates at a time: all CPUs of a core or of a socket; 0
	// = 1. TaskPerCore: each task gets cores of its own.
	CPUsPerAlloc int
	TaskPerCore  bool
	MemMiB       float64
	MemAlloc     float64
	Asleep       bool   // power saving has put it to sleep; a job wakes it, which takes minutes
	Reserved     bool   // a reservation or a maintenance keeps ordinary jobs away
	Owner        string // whose jobs alone may start there for now (ExclusiveUser=YES), "" = anybody's
	Planned      bool   // Slurm keeps it for a pending job; a job that starts there must end before
	Weight       int    // of nodes on which a job may start, Slurm takes one of the lowest
}

// Tasks returns how many tasks of one CPU fit on the node.
func (n *Node) Tasks() int {
	if n.TaskPerCore {
		return n.CPUs / max(1, n.CPUsPerAlloc)
	}
	return n.CPUs
}

// Allocates returns how many of the node's CPUs Slurm allocates to a job that requests cpus. Where each task gets cores
// of its own it is an upper bound: the number of tasks isn't known.
func (n *Node) Allocates(cpus int) int {
	per := max(1, n.CPUsPerAlloc)
	took := (cpus + per - 1) / per * per
	if n.TaskPerCore {
		took = cpus * per
	}
	if cpus <= n.CPUs {
		took = min(took, n.CPUs)
	}
	return took
}

// Takes returns how much of the node's memory Slurm allocates to a job, MiB.
func (n *Node) Takes(j *Job) float64 {
	if !j.MemPerCPU || j.CPUs <= 0 {
		return j.HostMemMiB
	}
	return j.HostMemMiB * float64(n.Allocates(j.CPUs)) / float64(j.CPUs)
}

// GPU is one GPU of a node.
type GPU struct {
	Type  string // gres.conf's, "" = none
	Units int    // its shares; 0 = none: it is in MIG mode, or its admin keeps it out
}

// GPU returns the GPU of the given index.
func (n *Node) GPU(i int) GPU {
	if i < len(n.ByIndex) {
		return n.ByIndex[i]
	}
	return GPU{Type: n.GPUType, Units: Units}
}

// Typed reports whether shares of the node's GPUs are asked for by type: some are MIG instances, and they aren't all
// alike. The GPUs of a type must follow each other, as Slurm counts them.
func (n *Node) Typed() bool {
	types := n.Types()
	runs := slices.Compact(slices.Clone(types))
	slices.Sort(types)
	isInstance := func(typ string) bool { _, ok := InstanceOf(typ); return ok }
	return n.Sharing == Shard && len(runs) > 1 && len(runs) == len(slices.Compact(types)) &&
		slices.ContainsFunc(runs, isInstance)
}

// Types are the types of the node's GPUs, by index.
func (n *Node) Types() []string {
	types := make([]string, n.GPUs)
	for g := range types {
		types[g] = n.GPU(g).Type
	}
	return types
}

// GateState is what a poll showed of the gate job.
type GateState struct {
	ID string // "" = there is none
	// Owner names the daemon that keeps it, "" = unknown.
	Owner string
	// Open: the job is not pending any more, so no job waits for it.
	Open bool
	// Begin is when it becomes eligible, which is when the lease ends.
	Begin time.Time
	// Partitions it is in. Priority is Slurm's; 0: it is held.
	Partitions []string
	Priority   int64
	// Misread lists the gate's fields that differ from what was submitted: this release prints them in another way, or a
	// plugin changes jobs at submission.
	Misread []Misread
}

// Misread is a field of the gate job with another value than the bridge has set.
type Misread struct {
	Field string `json:"field"` // as squeue names it
	Says  string `json:"says"`  // the value read, cut short
	Truth string `json:"truth"` // the right value, in words
}

func (m Misread) String() string { return fmt.Sprintf("%s says %q where %s", m.Field, m.Says, m.Truth) }

// Snapshot is one poll of Slurm.
type Snapshot struct {
	At time.Time
	// Release is Slurm's version, e.g. "22.05.8".
	Release string
	// Jobs holds every pending, running, suspended or completing job that requests a GPU or shares
	// of one, in squeue's order (highest priority first). Jobs without a GPU are left out.
	Jobs  []Job
	Nodes []Node
	Gates []GateState
	// Remembers is how long slurmctld keeps a job that has ended (MinJobAge), 0 = not known, or for ever.
	Remembers time.Duration
	// LeastLoaded: of GPUs with equally many free shares Slurm chooses the least loaded, not the first.
	LeastLoaded bool
	// GivesUsedGPUs: Slurm may give a job of a whole GPU one that a job with shares still uses.
	GivesUsedGPUs bool
	// MistakesGPUs: Slurm takes GPUs in use by shares for free, if only when it plans, for jobs of whole GPUs.
	MistakesGPUs bool
	// Ranks say which jobs may preempt which.
	Ranks Ranks
	// PrivateJobs: Slurm shows users no jobs but their own (PrivateData).
	PrivateJobs bool
	// PrivateUsage: it shows them no usage but their own.
	PrivateUsage bool
	// PerGPU holds the defaults per GPU by partition, AllPartitions for partitions without their own. Slurm counts whole
	// GPUs alone.
	PerGPU map[string]PerGPU
	// OneNode is, by partition, the largest number of CPUs that fits on each node with shares.
	OneNode map[string]int
	// WholeNodes are the partitions in which each job gets whole nodes (OverSubscribe=EXCLUSIVE), OneUser those in which a
	// node is one user's at a time (ExclusiveUser=YES).
	WholeNodes, OneUser map[string]bool
	// Unbilled are the partitions that bill whole GPUs (TRESBillingWeights) and no shares of one.
	Unbilled []string
	// GPULimits are accounting's limits on whole GPUs; they are read only where jobs are adopted.
	GPULimits []GPULimit
	// Awaited holds the jobs ("123", "120_4") and arrays ("120") that jobs without a GPU depend on.
	Awaited map[string]bool
}

// Models lists the types by which jobs may request shares, nil where there are no MIG instances and jobs request shares
// of any GPU.
func (s *Snapshot) Models() []string {
	types, mig := map[string]bool{}, false
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for g := range n.GPUs {
			if c := n.GPU(g); n.Sharing == Shard && c.Units >= Units && c.Type != "" {
				_, is := InstanceOf(c.Type)
				types[c.Type], mig = true, mig || is
			}
		}
	}
	if !mig {
		return nil
	}
	return slices.Sorted(maps.Keys(types))
}

// Types lists the types of the GPUs with shares, nil if there is only one.
func (s *Snapshot) Types() []string {
	types := map[string]bool{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for g := range n.GPUs {
			if c := n.GPU(g); n.Units > 0 && c.Units >= Units {
				types[c.Type] = true
			}
		}
	}
	if len(types) < 2 {
		return nil
	}
	delete(types, "")
	return slices.Sorted(maps.Keys(types))
}

// TakesNodes reports whether a job gets whole nodes, and with them all of their GPUs.
func (s *Snapshot) TakesNodes(j *Job) bool {
	return j.Exclusive == WholeNodes || slices.ContainsFunc(j.Partitions(), func(p string) bool { return s.WholeNodes[p] })
}

// PerGPU is DefCpuPerGPU and DefMemPerGPU, MiB; 0 = there is none.
type PerGPU struct{ CPUs, MemMiB uint64 }

// GPULimit is one of accounting's limits on the whole GPUs that jobs hold together. Slurm counts no adopted job under
// it that holds shares.
type GPULimit struct {
	Of string // as people know it: "GrpTRES of account lab"
	// It counts jobs of any of the accounts and of the user, nil or "" = any, and of the QOS or any of the partitions.
	Accounts, Partitions []string
	User, QOS            string
	// EachUser, EachAccount: for each of them by itself.
	EachUser, EachAccount bool
	Most                  int
	// Uncounted: what is left of it isn't known, since it is on GPU minutes or can't be read.
	Uncounted bool
}

// Counts reports whether the limit counts a job.
func (l *GPULimit) Counts(j *Job) bool {
	in := func(list []string) func(string) bool { return func(v string) bool { return slices.Contains(list, v) } }
	return (l.User == "" || l.User == j.User) && (l.Accounts == nil || in(l.Accounts)(j.Account)) &&
		(l.QOS == "" || l.QOS == j.QOS || slices.ContainsFunc(j.Partitions(), in(l.Partitions)))
}

// AllPartitions is no partition's name.
const AllPartitions = "*"

// Bounds are operators' bounds: how far time limits of running jobs may be raised, and which partitions are closed.
type Bounds struct {
	// MaxTime is the longest time limit by partition, 0 = any. None is raised in a partition that isn't there.
	MaxTime      map[string]time.Duration
	Reservations []Reservation
	// Closed are the partitions that an operator has closed: Slurm starts no job there.
	Closed map[string]bool
}

// Reservation keeps nodes free for a purpose, such as maintenance.
type Reservation struct {
	Name       string
	Start, End time.Time
	Nodes      map[string]bool // nil = any node may be among them
	// Magnetic: Slurm also starts jobs there that don't ask for it, of some users; Users nil = of anybody.
	Magnetic bool
	Users    []string
}

// Draws reports whether Slurm may start the job in the reservation although the job doesn't name it.
func (r *Reservation) Draws(j *Job, at time.Time) bool {
	return r.Magnetic && !at.Before(r.Start) && at.Before(r.End) && (r.Users == nil || slices.Contains(r.Users, j.User))
}

// Holds reports whether the node may be among the reservation's.
func (r *Reservation) Holds(node string) bool { return r.Nodes == nil || r.Nodes[node] }

// Update is a change to named jobs, sent to Slurm in one command. A nil field is left as it is.
type Update struct {
	Jobs       []string // refs
	Gres       *string  // e.g. "mps:50"
	ReqNodes   *string  // "" = any node
	Dependency *string  // "" = none
	// StartNow sets the begin time to now, which makes Slurm look at the job at once (seen: within 1 s instead of 30 s).
	StartNow bool
	// TimeLimit is in whole minutes; 0 = as it is.
	TimeLimit time.Duration
	// Host is what the jobs get of their node; 0 = as it is.
	Host         Defaults
	AdminComment *string
}

// Words returns the settings for scontrol in the order that was measured to make Slurm look at a released job at once:
// the dependency, then the begin time, the AdminComment last.
func (u *Update) Words() []string {
	var words []string
	add := func(is bool, key string, value any) {
		if is {
			words = append(words, fmt.Sprint(key, "=", value))
		}
	}
	text := func(key string, value *string) {
		if value != nil {
			add(true, key, *value)
		}
	}
	text("Gres", u.Gres)
	text("ReqNodeList", u.ReqNodes)
	text("Dependency", u.Dependency)
	add(u.StartNow, "StartTime", "now")
	add(u.TimeLimit > 0, "TimeLimit", int(u.TimeLimit/time.Minute))
	add(u.Host.CPUs > 0, "NumCPUs", u.Host.CPUs)
	add(u.Host.MemMiB > 0, "MinMemoryNode", u.Host.MemMiB)
	text("AdminComment", u.AdminComment)
	return words
}

// Description is Slurm's state of one job, whether pending, running or ended.
type Description struct {
	State   string `json:"state,omitempty"`   // Slurm's own word, e.g. "COMPLETED", "FAILED", "TIMEOUT"
	Requeue bool   `json:"requeue,omitempty"` // it may be run again
	// Start and End are its run's, in whole seconds; zero = it has not started, or not ended.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// Progress is how much of its work a running job has done.
type Progress struct {
	// At is the time of the poll that the other fields describe. RunS is how long the job had run by then, s, without the
	// time in which it was suspended.
	At   time.Time `json:"at,omitzero"`
	RunS float64   `json:"run_s,omitempty"`
	// DoneS is the predicted solo work done, s; LeastS a lower bound, by equal time slices for all co-runners. Slow and
	// Worst are the present slowdowns of these two; 1 = none.
	DoneS  float64 `json:"done_s,omitempty"`
	LeastS float64 `json:"least_s,omitempty"`
	Slow   float64 `json:"slow,omitempty"`
	Worst  float64 `json:"worst,omitempty"`
}

// Errors of Slurm's commands that callers distinguish.
var (
	// ErrNoJob: the job doesn't exist any more, or isn't pending any more.
	ErrNoJob = errors.New("no such pending job")
	// ErrRefused: slurmctld answered, and refused. Fields of the update may have changed all the same: poll again.
	ErrRefused = errors.New("slurmctld refused")
	// ErrDown: slurmctld did not answer, or not yet.
	ErrDown = errors.New("slurmctld does not answer")
)

// Slurm is the cluster as the bridge uses it. Every call runs one of Slurm's commands and ends within its own deadline.
type Slurm interface {
	// Poll reads queue and nodes. Returns ErrDown if slurmctld doesn't answer.
	Poll(ctx context.Context) (*Snapshot, error)
	// Jobs reads at least the named jobs again, without their GPUs; jobs that are gone are missing in the answer. Returns
	// ErrDown.
	Jobs(ctx context.Context, refs []string) ([]Job, error)
	// UpdateAll changes pending jobs, and the time limits of running ones: many updates, several at a time, each of other
	// jobs, in no order but that of the tasks of an array. It returns an error for each update, nil = made: ErrNoJob if
	// one of several jobs is gone (the rest may have been changed: poll again), ErrRefused, ErrDown.
	UpdateAll(ctx context.Context, all []Update) []error
	// Bounds reads the operators' bounds.
	Bounds(ctx context.Context) (*Bounds, error)
	// PartitionUp reports whether there is such a partition, its jobs may start, and not as jobs of whole nodes. Returns
	// ErrDown.
	PartitionUp(ctx context.Context, name string) (bool, error)
	// CreateGate submits the gate job to the given partitions (none = the default one), with a lease that ends after the
	// given time. account returns the gate's account if Slurm refused the default account of the bridge's user, else "".
	// Returns ErrRefused, ErrDown.
	CreateGate(ctx context.Context, lease time.Duration, partitions []string) (id, account string, err error)
	// RenewGate makes the lease end the given time from now. Returns ErrNoJob if the gate isn't pending any more.
	RenewGate(ctx context.Context, id string, lease time.Duration) error
	// MendGate releases the gate if it is held, puts it into the given partitions and gives
	// it the highest priority. Returns ErrNoJob, ErrRefused, ErrDown.
	MendGate(ctx context.Context, g GateState, partitions []string) error
	// ClaimGate makes this daemon the gate's owner. Returns ErrNoJob, ErrRefused, ErrDown.
	ClaimGate(ctx context.Context, id string) error
	// OpenGate cancels the gate, which lets every job go that waits for it. A gate that is gone already is no error.
	OpenGate(ctx context.Context, id string) error
	// Script returns a job's batch script, at most 256 KiB of it. Returns ErrNoJob.
	Script(ctx context.Context, ref string) ([]byte, error)
	// Describe returns Slurm's state of the named jobs, ended ones included while Slurm keeps them; unknown jobs are
	// missing in the answer. Returns ErrDown.
	Describe(ctx context.Context, refs []string) (map[string]Description, error)
	// Requeue lets a batch job that runs or has ended run again. Returns ErrNoJob, ErrRefused, ErrDown.
	Requeue(ctx context.Context, ref string) error
}

// GateName is the gate job's name in the queue.
const GateName = "slurmbridge-gate"

// GateComment is the comment of a gate that a daemon of this name keeps.
func GateComment(owner string) string {
	if owner == "" {
		return GateName
	}
	return GateName + "@" + owner
}

// GateOwner reads a GateComment; ok is false for any other text.
func GateOwner(comment string) (owner string, ok bool) {
	rest, ok := strings.CutPrefix(comment, GateName)
	owner, named := strings.CutPrefix(rest, "@")
	return owner, ok && (named || rest == "")
}

// GatePriority is the gate's priority, Slurm's highest: the gate ends when Slurm comes to
// it, however many jobs wait in its partitions. It takes nothing from them.
const GatePriority = 1<<32 - 3

// GateLimit is the gate's time limit, Slurm's smallest.
const GateLimit = time.Minute

// Serves reports whether the node is in one of the partitions.
func (n *Node) Serves(partitions []string) bool {
	return slices.ContainsFunc(partitions, func(p string) bool { return slices.Contains(n.Partitions, p) })
}

// MayBeOn reports whether the job is on the GPU, or may be: Slurm may not say yet which of the node's GPUs it has.
func (j *Job) MayBeOn(a GPUAddr) bool {
	if j.State == Pending || j.Nodes != a.Node && !slices.Contains(hostlist.Names(j.Nodes), a.Node) {
		return false
	}
	gpus, known := j.GPUsOn(a.Node)
	return !known || slices.Contains(gpus, a.GPU)
}

// GPUsOn returns the GPUs that a running job has of one of its nodes. false: they are not known.
func (j *Job) GPUsOn(node string) (gpus []int, known bool) {
	if j.Nodes == node {
		return j.GPUs, j.GPUs != nil
	}
	gpus, known = j.ByNode[node]
	return gpus, known
}

// Holds returns the GPUs that a running job is known to have, in no order.
func (j *Job) Holds() (all []GPUAddr) {
	for _, g := range j.GPUs {
		all = append(all, GPUAddr{Node: j.Nodes, GPU: g})
	}
	for node, gpus := range j.ByNode {
		for _, g := range gpus {
			all = append(all, GPUAddr{Node: node, GPU: g})
		}
	}
	return all
}

// Rank orders pending jobs as Slurm does before it looks at their submission: jobs of reservations come first, then
// those of higher tiers, then those of higher priority (sort_job_queue2, 22.05 to 26.05).
func (j *Job) Rank() int64 {
	const priorities, tiers = 1 << 32, 1 << 16 // Slurm has so many
	rank := int64(j.Tier)*priorities + j.Priority
	if j.Reservation != "" {
		rank += tiers * priorities
	}
	return rank
}

// Partitions lists the job's partitions; a running job has one.
func (j *Job) Partitions() []string { return strings.Split(j.Partition, ",") }

// Plain formats the conditions for scontrol.
func (d Dependencies) Plain() string { return d.Without(nil) }

// Without formats the conditions for scontrol, leaving out those on a gate.
func (d Dependencies) Without(gates []GateState) string {
	sep := ","
	if d.Or {
		sep = "?"
	}
	var out []string
	for _, t := range d.List {
		if t.Type == "after" && slices.ContainsFunc(gates, func(g GateState) bool { return g.ID == t.Job }) {
			continue
		}
		s := t.Type
		if t.Job != "" {
			s += ":" + t.Job + t.Rest
		}
		out = append(out, s)
	}
	return strings.Join(out, sep)
}

// Node returns the node of a name, nil = there is none.
func (s *Snapshot) Node(name string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// PartitionFilter limits which jobs the bridge manages.
type PartitionFilter struct {
	Include, Exclude []string // partitions; an empty Include means all
	// SharersOnly are partitions in which no job gets a whole GPU but by all of its shares.
	SharersOnly []string
	// MixAnyway: jobs share also where that makes jobs of whole GPUs, or those behind them, worse off.
	MixAnyway bool
}

// Covers reports whether the bridge manages jobs of these partitions, which are separated by commas.
func (f *PartitionFilter) Covers(partitions string) bool {
	return !slices.ContainsFunc(strings.Split(partitions, ","), func(p string) bool {
		return slices.Contains(f.Exclude, p) || len(f.Include) > 0 && !slices.Contains(f.Include, p)
	})
}

// MeetsWholeGPUs reports whether a job could share on a node that also hands out whole GPUs, though this Slurm mistakes
// GPUs in use by shares for free ones.
func (f *PartitionFilter) MeetsWholeGPUs(s *Snapshot, j *Job) bool {
	if !s.MistakesGPUs || f.MixAnyway {
		return false
	}
	partitions := j.Partitions()
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Serves(partitions) && f.mixes(s, &n) })
}

// mixes reports whether a node also hands out whole GPUs, though this Slurm mistakes GPUs in use by shares for free
// ones. Jobs of whole nodes have none beside sharers.
func (f *PartitionFilter) mixes(s *Snapshot, n *Node) bool {
	mixed := func(p string) bool { return !slices.Contains(f.SharersOnly, p) && !s.WholeNodes[p] }
	return s.MistakesGPUs && !f.MixAnyway && slices.ContainsFunc(n.Partitions, mixed)
}

// Ranks say which jobs Slurm may preempt for which.
type Ranks struct {
	ByQOS bool // preempt/qos
	// QOS says, with preempt/qos, which QOSes each preempts; nil = it isn't known.
	QOS map[string][]string
	// Partitions are there with preempt/partition_prio, by name.
	Partitions map[string]PartitionRank
}

// PartitionRank is a partition's: its jobs may preempt those of lower tiers that are preemptible, on nodes of both.
type PartitionRank struct {
	Tier        int
	Preemptible bool
}

// Of is a word that is the same for jobs that may be preempted alike, and for which none may preempt the other.
func (r *Ranks) Of(j *Job) string {
	switch {
	case r.ByQOS && r.QOS == nil:
		return j.QOS
	case r.ByQOS:
		return r.ofQOS(j.QOS)
	case r.Partitions == nil:
		return ""
	}
	var all []string
	for _, p := range j.Partitions() {
		all = append(all, fmt.Sprint(r.Partitions[p]))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// ofQOS is Of for jobs of a QOS: which others preempt it, and which ones it preempts.
func (r *Ranks) ofQOS(name string) string {
	var by []string
	for other, preempts := range r.QOS {
		if slices.Contains(preempts, name) {
			by = append(by, other)
		}
	}
	slices.Sort(by)
	of := slices.Sorted(slices.Values(r.QOS[name]))
	return strings.Join(by, ",") + ">" + strings.Join(of, ",")
}

// Preempts reports whether Slurm may preempt a running job, nil = it isn't known, for a pending one.
func (r *Ranks) Preempts(pending, running *Job) bool {
	if running != nil && slices.Contains(r.QOS[pending.QOS], running.QOS) {
		return true
	}
	if len(r.Partitions) == 0 || running == nil {
		return false
	}
	other := r.Partitions[running.Partition]
	if !other.Preemptible {
		return false
	}
	return slices.ContainsFunc(pending.Partitions(), func(p string) bool { return r.Partitions[p].Tier > other.Tier })
}

// Count is a number of things in words: "1 job", "3 jobs". noun is the singular.
func Count(n int, noun string) string {
	text := strconv.Itoa(n) + " " + noun
	if n != 1 {
		text += "s"
	}
	return text
}

// Span is a time in words, from hours: "90 s", "45 min", "3.5 h".
func Span(hours float64) string {
	d := time.Duration(math.Abs(hours) * float64(time.Hour))
	sign := ""
	if hours < 0 && d >= time.Second {
		sign = "-"
	}
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%s%.0f s", sign, d.Seconds())
	case d < 3*time.Hour:
		return fmt.Sprintf("%s%.0f min", sign, d.Minutes())
	default:
		return fmt.Sprintf("%s%.1f h", sign, d.Hours())
	}
}
