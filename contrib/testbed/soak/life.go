package soak

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Users of every Debian, that jobs run as. Most jobs are the first one's: a Titan Xp serves
// one user at a time.
var users = []string{"games", "games", "games", "news"}

// Partitions: Slurm's default one, and one of the same nodes.
var partitions = []string{"gpu", "night"}

// life is what is planned for one job, or for each task of an array.
type life struct {
	N         int
	User      string
	App       string // the store's name of it; "" = the store knows nothing of it
	Base      string // of the catalogue, with its figures
	SoloS     float64
	LimitMin  int
	BeginS    float64 // --begin, s after its submission; 0 = at once
	DeadlineS float64 // --deadline, s after its submission; 0 = none
	Contract  float64 // its own; 0 = the site's
	NoShare   bool
	Shares    int // hand-written, which job_submit.lua turns into gpu:shared; 0 = gpu:shared
	Tasks     int // of an array; 0 = no array
	Partition string
	// After is the job that it waits for, -1 = none.
	After int
	// Fails: its program is wrong and ends with an error at once, in any company.
	Fails bool
	Acts  []act
}

// act is what a job's owner does with it.
type act struct {
	AtS  float64 // after its submission
	What string
	Arg  string
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

// catalogue is what the store knows: every application of the thesis in three lengths, s
// as the profile says.
func catalogue() []*rlcore.Profile {
	var out []*rlcore.Profile
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

// wrong is by how much a job's true solo time may differ from its profile's.
const wrong = 0.3

// drawLife plans the n-th job. short keeps out what takes long to end.
func drawLife(rnd *rand.Rand, n int, known []*rlcore.Profile, short bool) life {
	between := func(a, b float64) float64 { return a + (b-a)*rnd.Float64() }
	chance := func(p float64) bool { return rnd.Float64() < p }
	l := life{N: n, User: users[rnd.IntN(len(users))], Partition: partitions[0], After: -1}
	if chance(0.15) {
		l.Partition = partitions[1]
	}
	p := known[rnd.IntN(len(known))]
	for p.DurationS > 60 && (short || chance(0.5)) {
		p = known[rnd.IntN(len(known))]
	}
	l.App = p.App
	l.Base, _, _ = strings.Cut(p.App, "-")
	l.SoloS = p.DurationS * between(1-wrong, 1+wrong)
	switch {
	case chance(0.06):
		l.App = ""
	case chance(0.06):
		l.Shares = 30
	}
	l.LimitMin = limitOf(l.SoloS, between(leastLimit, mostLimit), rnd)
	if short {
		return l
	}
	if chance(0.06) {
		l.BeginS = between(5, 60)
	}
	if chance(0.1) {
		l.DeadlineS = l.BeginS + 60*float64(l.LimitMin) + between(30, 240)
	}
	if l.Shares == 0 {
		l.NoShare = chance(0.03)
		if chance(0.15) {
			l.Contract = math.Round(between(1.2, 2)*100) / 100
		}
		if chance(0.05) {
			l.Tasks = 2 + rnd.IntN(5)
		}
	}
	if n > 0 && chance(0.05) {
		l.After = n - 1 - rnd.IntN(min(n, 20))
	}
	l.Fails = chance(0.01)
	l.Acts = drawActs(rnd, &l)
	return l
}

// leastLimit and mostLimit are limits as multiples of the solo time.
const leastLimit, mostLimit = 1.1, 3

// limitOf is a limit in whole minutes, between leastLimit and mostLimit times the solo time and on
// average factor times it, up to rounding.
func limitOf(soloS, factor float64, rnd *rand.Rand) int {
	n := math.Floor(factor*soloS/60 + rnd.Float64())
	return int(max(math.Ceil(leastLimit*soloS/60), min(n, math.Floor(mostLimit*soloS/60))))
}

// tight is the least limit that a job's owner would give it.
func tight(soloS float64) int { return int(math.Ceil(leastLimit * soloS / 60)) }

// drawActs plans what the owner of a job does with it; most do nothing.
func drawActs(rnd *rand.Rand, l *life) []act {
	between := func(a, b float64) float64 { return a + (b-a)*rnd.Float64() }
	switch k := rnd.Float64(); {
	case k < 0.05:
		return []act{{between(0, 60), cancel, ""}}
	case k < 0.08:
		return []act{{between(10, 60), requeue, ""}}
	case k < 0.11:
		at := between(0, 10)
		return []act{{at, hold, ""}, {at + between(5, 40), letGo, ""}}
	case k < 0.13 && l.Shares == 0:
		return []act{{between(0, 15), gres, "50"}}
	case k < 0.16 && tight(l.SoloS) < l.LimitMin:
		return []act{{between(0, 20), timeLimit, strconv.Itoa(tight(l.SoloS))}}
	case k < 0.18 && l.Tasks == 0:
		return []act{{between(0, 15), dependency, ""}}
	}
	return nil
}

// args are sbatch's, except those known only at the call: the dependency and the output folder.
// plain requests a whole GPU instead of a shared one.
func (l *life) args(plain bool) []string {
	args := []string{
		"--job-name=" + jobName(l.N), "--partition=" + l.Partition, "--time=" + strconv.Itoa(l.LimitMin), "--output=/dev/null",
	}
	switch {
	case plain:
		args = append(args, "--gres=mps:100")
	case l.Shares > 0:
		args = append(args, fmt.Sprintf("--gres=mps:%d", l.Shares))
	default:
		args = append(args, "--gres=gpu:shared")
	}
	if l.BeginS > 0 {
		args = append(args, fmt.Sprintf("--begin=now+%.0f", l.BeginS))
	}
	if l.DeadlineS > 0 {
		args = append(args, fmt.Sprintf("--deadline=now+%.0f", l.DeadlineS))
	}
	if l.Tasks > 0 {
		args = append(args, fmt.Sprintf("--array=1-%d", l.Tasks))
	}
	var terms []string
	if l.App != "" {
		terms = append(terms, "app="+l.App)
	}
	if l.Contract > 0 {
		terms = append(terms, fmt.Sprintf("share:max-slowdown=%g", l.Contract))
	}
	if l.NoShare {
		terms = append(terms, "share:no")
	}
	if len(terms) > 0 {
		args = append(args, "--comment="+strings.Join(terms, ","))
	}
	return args
}

// keys names the life's jobs as looks do.
func (l *life) keys() []string {
	if l.Tasks == 0 {
		return []string{jobName(l.N)}
	}
	var out []string
	for i := range l.Tasks {
		out = append(out, taskKey(jobName(l.N), strconv.Itoa(i+1)))
	}
	return out
}

// String says what it is, for people.
func (l *life) String() string {
	what := []string{fmt.Sprintf("%s of %s, %.0f s alone, %d min", cmp.Or(l.App, "unknown "+l.Base), l.User, l.SoloS, l.LimitMin)}
	if l.Shares > 0 {
		what = append(what, fmt.Sprintf("%d shares by hand", l.Shares))
	}
	if l.Tasks > 0 {
		what = append(what, fmt.Sprintf("array of %d", l.Tasks))
	}
	for _, a := range l.Acts {
		what = append(what, strings.TrimSpace(fmt.Sprintf("%s %s", a.What, a.Arg)))
	}
	return strings.Join(what, ", ")
}

func jobName(n int) string { return "life" + strconv.Itoa(n) }

func taskKey(name, task string) string { return name + "_" + task }

// ownWay reports whether its owner takes it out of the bridge's hands by an edit.
func (l *life) ownWay() bool {
	return slices.ContainsFunc(l.Acts, func(a act) bool { return a.What == gres || a.What == dependency })
}
