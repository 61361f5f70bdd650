package soak

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Users of every Debian, that jobs run as. Most jobs are the first one's: a Titan Xp serves one user at a time.
var users = []string{"games", "games", "games", "news"}

// shared is what jobs that may share request.
const shared = "gpu:shared"

// Partitions of the same nodes: the default, another, one whose jobs preempt, and one for jobs of several GPUs.
const (
	dayPart, nightPart = "gpu", "night"
	urgentPart         = "urgent"
	largePart          = "large"
)

// life is what is planned for one job, or for each task of an array, and what its owner knows and did.
type life struct {
	N         int
	User      string
	App       string // the store's name of it; "" = the store knows nothing of it
	Base      string // of the catalogue, with its figures
	SoloS     float64
	LimitMin  int
	Partition string
	Traits    []string
	Request   string   // gpu:shared, or shares by hand, which job_submit.lua turns into that, or whole GPUs
	Args      []string // more of sbatch's
	Terms     []string // of its comment
	GPUs      int      // whole ones; 0 = it may share
	BeginS    float64  // it begins so long after its submission at the earliest
	DeadlineS float64  // s after its submission; 0 = none
	Contract  float64  // its own; 0 = the site's
	Tasks     int      // of an array; 0 = no array
	After     int      // the job that it waits for, -1 = none
	Fails     bool     // it ends with an error at once
	Acts      []act

	submitted string  // Slurm's number; "" = none yet
	at        float64 // when it was submitted
	gone      float64 // when it was cancelled; +Inf = never
	requeued  float64 // 0 = never
	held      []interval
	limitS    float64 // as its owner last set it
	// forgotten: a killed slurmctld forgot the job, and gave its number to another.
	forgotten bool
}

// act is what a job's owner does with it: a command, with JOB for its number.
type act struct {
	AtS           float64 // after its submission
	What, Command string
}

// What owners do.
const (
	cancel     = "cancel"
	requeue    = "requeue"
	hold       = "hold"
	letGo      = "release"
	gres       = "gres"
	timeLimit  = "limit"
	dependency = "dependency"
)

// catalogue is what the store knows: every application of the thesis in three lengths, s as the profile says.
func catalogue() (out []*rlcore.Profile) {
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		for _, s := range []float64{29, 45, 70} {
			q := app.Scaled(p, s/p.DurationS, 1)
			q.App = fmt.Sprintf("%s-%g", name, s)
			out = append(out, q)
		}
	}
	return out
}

// wrong is by how much a job's true solo time may differ from its profile's. leastLimit and mostLimit are limits, which
// are whole minutes, as multiples of the true one.
const wrong, leastLimit, mostLimit = 0.3, 1.1, 3

// dice draw what lives are like.
type dice struct{ *rand.Rand }

func (d dice) between(a, b float64) float64 { return a + (b-a)*d.Float64() }
func (d dice) chance(p float64) bool        { return d.Float64() < p }

// trait sets a job apart from one that shares and runs.
type trait struct {
	name string
	part float64            // of the jobs that it fits
	fits func(l *life) bool // nil = all
	set  func(l *life, d dice)
	// swift: also a job that comes shortly before the end may have it.
	swift bool
}

func sharer(l *life) bool { return l.Request == shared }
func single(l *life) bool { return l.GPUs < 2 }
func idle(l *life) bool   { return len(l.Acts) == 0 }

// traits are drawn for each job in this order.
var traits = []trait{
	{"several GPUs", 0.1, nil, func(l *life, _ dice) { l.GPUs, l.Request, l.Partition = 2, "gpu:2", largePart }, true},
	{"whole GPU", 0.37, sharer, func(l *life, _ dice) { l.GPUs, l.Request = 1, "gpu:1" }, true},
	{"in another partition", 0.15, single, func(l *life, _ dice) { l.Partition = nightPart }, true},
	{"preempts", 0.03, single, func(l *life, _ dice) { l.Partition = urgentPart }, false},
	{"unknown", 0.06, sharer, func(l *life, _ dice) { l.App = "" }, true},
	{"shares by hand", 0.06, sharer, func(l *life, _ dice) { l.Request = "mps:30" }, true},
	{"begins later", 0.06, nil, func(l *life, d dice) {
		l.BeginS = d.between(5, 60)
		l.asks("--begin=now+%.0f", l.BeginS)
	}, false},
	{"deadline", 0.1, nil, func(l *life, d dice) {
		l.DeadlineS = l.BeginS + 60*float64(l.LimitMin) + d.between(30, 240)
		l.asks("--deadline=now+%.0f", l.DeadlineS)
	}, false},
	{"never shares", 0.03, sharer, func(l *life, _ dice) { l.Terms = append(l.Terms, "share:no") }, false},
	{"contract", 0.15, sharer, func(l *life, d dice) {
		l.Contract = math.Round(d.between(1.2, 2)*100) / 100
		l.Terms = append(l.Terms, fmt.Sprintf("share:max-slowdown=%g", l.Contract))
	}, false},
	{"array", 0.05, func(l *life) bool { return l.GPUs > 0 || sharer(l) }, func(l *life, d dice) {
		l.Tasks = 2 + d.IntN(5)
		l.asks("--array=1-%d", l.Tasks)
	}, false},
	{"after another", 0.05, func(l *life) bool { return l.N > 0 }, func(l *life, d dice) {
		l.After = l.N - 1 - d.IntN(min(l.N, 20))
	}, false},
	{"wrong program", 0.01, nil, func(l *life, _ dice) { l.Fails = true }, false},
	{cancel, 0.05, idle, func(l *life, d dice) { l.acts(d.between(0, 60), cancel, "scancel JOB") }, false},
	{requeue, 0.03, idle, func(l *life, d dice) { l.acts(d.between(10, 60), requeue, "scontrol requeue JOB") }, false},
	{hold, 0.03, idle, func(l *life, d dice) {
		at := d.between(0, 10)
		l.acts(at, hold, "scontrol hold JOB")
		l.acts(at+d.between(5, 40), letGo, "scontrol release JOB")
	}, false},
	{gres, 0.03, func(l *life) bool { return sharer(l) && idle(l) }, func(l *life, d dice) {
		l.acts(d.between(0, 15), gres, "scontrol update JobId=JOB Gres=mps:50")
	}, false},
	{timeLimit, 0.03, func(l *life) bool { return idle(l) && tight(l.SoloS) < l.LimitMin }, func(l *life, d dice) {
		l.acts(d.between(0, 20), timeLimit, fmt.Sprintf("scontrol update JobId=JOB TimeLimit=%d", tight(l.SoloS)))
	}, false},
	{dependency, 0.02, func(l *life) bool { return l.Tasks == 0 && idle(l) }, func(l *life, d dice) {
		l.acts(d.between(0, 15), dependency, "scontrol update JobId=JOB Dependency=")
	}, false},
}

// asks adds an argument of sbatch's.
func (l *life) asks(format string, value any) { l.Args = append(l.Args, fmt.Sprintf(format, value)) }

func (l *life) acts(at float64, what, command string) {
	l.Acts = append(l.Acts, act{at, what, command})
}

// drawLife plans the n-th job. short keeps out what takes long to end.
func drawLife(rnd *rand.Rand, n int, known []*rlcore.Profile, short bool) *life {
	d := dice{rnd}
	l := &life{
		N: n, User: users[d.IntN(len(users))], Partition: dayPart, Request: shared, After: -1, gone: math.Inf(1),
	}
	p := known[d.IntN(len(known))]
	for p.DurationS > 60 && (short || d.chance(0.5)) {
		p = known[d.IntN(len(known))]
	}
	l.App = p.App
	l.Base, _, _ = strings.Cut(p.App, "-")
	l.SoloS = p.DurationS * d.between(1-wrong, 1+wrong)
	limit := math.Floor(d.between(leastLimit, mostLimit)*l.SoloS/60 + d.Float64()) // on average the mean
	l.LimitMin = max(tight(l.SoloS), int(min(limit, math.Floor(mostLimit*l.SoloS/60))))
	l.limitS = 60 * float64(l.LimitMin)
	for _, t := range traits {
		if (t.swift || !short) && (t.fits == nil || t.fits(l)) && d.chance(t.part) {
			t.set(l, d)
			l.Traits = append(l.Traits, t.name)
		}
	}
	return l
}

// tight is the least limit that a job's owner would give it.
func tight(soloS float64) int { return int(math.Ceil(leastLimit * soloS / 60)) }

// args are sbatch's, except those known only at the call: the dependency and the output folder.
// plain requests a whole GPU instead of a shared one.
func (l *life) args(plain bool) []string {
	terms, request := l.Terms, l.Request
	if plain && l.GPUs == 0 {
		request = "mps:100"
	}
	if l.App != "" {
		terms = append([]string{"app=" + l.App}, terms...)
	}
	args := append([]string{
		"--job-name=" + jobName(l.N), "--partition=" + l.Partition, "--time=" + strconv.Itoa(l.LimitMin),
		"--output=/dev/null", "--gres=" + request,
	}, l.Args...)
	if len(terms) > 0 {
		args = append(args, "--comment="+strings.Join(terms, ","))
	}
	return args
}

// names returns the names of the life's jobs: one, or one for each task of an array.
func (l *life) names() []string {
	if l.Tasks == 0 {
		return []string{jobName(l.N)}
	}
	var out []string
	for i := range l.Tasks {
		out = append(out, jobName(l.N)+"_"+strconv.Itoa(i+1))
	}
	return out
}

// script runs the life's application on any GPU of any node, and leaves a file once its work is done.
func (l *life) script(s *cluster.Stack) string {
	if l.Fails {
		return "exit 9\n"
	}
	p, _ := apps.ByName(l.Base)
	return fmt.Sprintf(`s=%s; [ $SLURMD_NODENAME = n1 ] || s=$s-$SLURMD_NODENAME
out=%s/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
GPUSIM_STATE=$s %s run %s --duration-scale %g --report $out.json || exit
: >$out
`, s.StateOf(0), s.Path("out"), s.Bin("gpusim"), l.Base, l.SoloS/p.DurationS)
}

// String says what it is, for people.
func (l *life) String() string {
	return strings.Join(append([]string{
		fmt.Sprintf("%s of %s, %.0f s alone, %d min", cmp.Or(l.App, l.Base), l.User, l.SoloS, l.LimitMin),
	}, l.Traits...), ", ")
}

func jobName(n int) string { return "life" + strconv.Itoa(n) }

// ownWay reports whether an edit takes the job out of the bridge's hands.
func (l *life) ownWay() bool {
	return slices.ContainsFunc(l.Acts, func(a act) bool { return a.What == gres || a.What == dependency })
}

// kept reports whether its owner neither cancelled nor requeued it.
func (l *life) kept() bool { return math.IsInf(l.gone, 1) && l.requeued == 0 }
