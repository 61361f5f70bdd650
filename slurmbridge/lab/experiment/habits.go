package experiment

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// habits are how a site's users submit jobs, and how the lengths of these differ. Users come in sessions of one script.
// The logarithm of a run's length is the sum of the application's, the user's, the session's and the run's own part.
type habits struct {
	medianS                                   float64 // of a run, s
	appSigma, userSigma, sessionSigma, runSig float64 // standard deviations of the parts
	// A session has so many jobs at the most; its logarithm is uniform, since most sessions are small.
	leastJobs, mostJobs float64
	// evaluating is the part of the runs that only evaluate, and take evaluation of a training's time.
	evaluating, evaluation float64
	// failing is the part of the jobs that end after leastFailS to mostFailS: a wrong path, a missing module.
	failing float64
	// caution is how many times the longest run to be expected a user's limit allows for, drawn from 1 to this; 0 = no
	// limits. The limit is a step of the ladder.
	caution float64
	users   int     // more than heavyUsers, or 1, who has all applications
	swing   float64 // in the busiest hour 1 + swing times as many sessions begin as on average
}

// The habits of the worlds. All figures are assumptions. Lengths in log-normal form with a standard deviation of about
// 0.7 to 1.6 of an application's logarithms are what published queues show, and most runs are short.
var (
	// Each run has its own length, and nothing tells it before. All are one user's, as the card of the law's world wants.
	byRun = habits{medianS: 600, appSigma: 0.5, runSig: 0.7, leastJobs: 1, mostJobs: 1, users: 1}
	// A user's runs are alike, and limits tell their length.
	byUser = habits{
		medianS: 1800, appSigma: 0.3, userSigma: 0.8, sessionSigma: 0.4, runSig: 0.4, leastJobs: 1, mostJobs: 8,
		caution: 2, users: 20, swing: 0.5,
	}
	// One script trains or evaluates, under one limit.
	twoClusters = habits{
		medianS: 3600, appSigma: 0.3, userSigma: 0.3, sessionSigma: 0.2, runSig: 0.3, leastJobs: 1, mostJobs: 8,
		evaluating: 0.4, evaluation: 0.05, caution: 3, users: 20, swing: 0.5,
	}
	// A sweep is one script many times: half of the variance of 1.6² lies between users and between sweeps, so that a
	// sweep's limit says more of its length than the application's name does.
	sweeps = habits{
		medianS: 1800, userSigma: 0.8, sessionSigma: 0.8, runSig: 1.13, leastJobs: 5, mostJobs: 50, failing: 0.15,
		caution: 3, users: 20, swing: 0.8,
	}
)

const (
	// Of the users so many are heavy, and submit that part of the sessions: a few projects fill a cluster.
	heavyUsers, heavyPart = 5, 0.8
	// How many applications a user has.
	appsOfUser = 2
	// The mean time between two jobs of a session, s: a loop around sbatch, and some thought in between.
	sessionGapS           = 10
	leastFailS, mostFailS = 5, 60
	// The longest run that a user expects is so many standard deviations above the session's typical one.
	longestSigmas = 2
	// The longest run of a job, as a part of its limit: a user whose job ran into a limit asks for more.
	longestOfLimit = 0.95
	mostS          = 14 * 86400
	// What a site with fewer than two runs of an application takes the standard deviation of their logarithms to be.
	unknownSigma = 0.7
)

// ladder holds the time limits that users write, h: the round ones of sites' partitions.
var ladder = [...]float64{.5, 1, 2, 4, 8, 12, 24, 48, 72, 7 * 24, 14 * 24}

// site is one drawing of a site's users and applications.
type site struct {
	habits
	apps []*rlcore.Profile
	r    *rand.Rand
	of   map[string]float64 // by application, or user and application: the part of a length's logarithm
	uses map[[2]int]int     // by user, and number of the user's application: index in apps
}

// drawnJob is a job of a drawn site.
type drawnJob struct {
	id, user, app          string
	submitS, tookS, limitS float64
}

func newSite(h habits, apps []*rlcore.Profile, r *rand.Rand) *site {
	return &site{h, apps, r, map[string]float64{}, map[[2]int]int{}}
}

// draw draws n jobs for so many GPUs, with as much work as load of what they do without sharing. The site has seen as
// many before: what it learned from them is in the trace's profiles.
func (p *Place) draw(gpus, n int, load float64, seed uint64) (*Trace, []drawnJob) {
	r := rand.New(rand.NewPCG(seed, 0x53eeb5)) //nolint:gosec // an experiment is repeatable, not secret
	s := newSite(p.habits, p.Profiles, r)
	jobs := s.draw(2*n, load*float64(gpus))
	t := &Trace{Pairs: p.Pairs, Law: p.Law, GPUs: slices.Repeat([]rlcore.GPUSpec{p.Card}, gpus)}
	for _, app := range p.Profiles {
		t.Profiles = append(t.Profiles, s.learned(app, jobs[:n]))
	}
	return t, jobs[n:]
}

// arrivals returns drawn jobs as the simulator's, with the profiles by application that decisions see, and what the
// applications really do.
func arrivals(jobs []drawnJob, seen, really map[string]*rlcore.Profile) (out []sim.Arrival) {
	for _, j := range jobs {
		out = append(out, sim.Arrival{
			Job: rlcore.Job{
				ID: j.id, User: j.user, Profile: seen[j.app], SubmitS: j.submitS - jobs[0].submitS, LimitS: j.limitS,
			},
			Truth: really[j.app].Stretched(j.tookS),
		})
	}
	return out
}

// draw draws n jobs that bring so much work a second, in the order in which they come.
func (s *site) draw(n int, workPerS float64) []drawnJob {
	var all [][]drawnJob // by session
	for left := n; left > 0; {
		one := s.session()
		one = one[:min(len(one), left)]
		all = append(all, one)
		left = left - len(one)
	}
	return s.atHours(all, workPerS)
}

// part is the part that an application, or a user's use of it, has in the logarithm of a length.
func (s *site) part(of string, sigma float64) float64 {
	x, known := s.of[of]
	if !known {
		x = sigma * s.r.NormFloat64()
		s.of[of] = x
	}
	return x
}

// appOf is the index of an application of a user's.
func (s *site) appOf(user, k int) int {
	app, known := s.uses[[2]int{user, k}]
	if !known {
		app = s.r.IntN(len(s.apps))
		s.uses[[2]int{user, k}] = app
	}
	return app
}

// session draws one session; its jobs' times begin with it.
func (s *site) session() []drawnJob {
	user := 0
	app := s.r.IntN(len(s.apps))
	if s.users > 1 {
		user = s.r.IntN(heavyUsers)
		if s.r.Float64() > heavyPart {
			user = heavyUsers + s.r.IntN(s.users-heavyUsers)
		}
		app = s.appOf(user, s.r.IntN(appsOfUser))
	}
	return s.jobsOf(fmt.Sprintf("user%d", user), s.apps[app].App)
}

// jobsOf draws the jobs of a user's session.
func (s *site) jobsOf(name, app string) []drawnJob {
	typicalS := s.medianS * math.Exp(s.part(app, s.appSigma)+s.part(name+"/"+app, s.userSigma)+
		s.sessionSigma*s.r.NormFloat64())
	mostRunS := float64(mostS)
	limitS := 0.0
	if s.caution > 0 {
		limitS = limitAbove(typicalS * math.Exp(longestSigmas*s.runSig) * (1 + (s.caution-1)*s.r.Float64()))
		mostRunS = longestOfLimit * limitS
	}
	jobs := make([]drawnJob, int(math.Round(s.leastJobs*math.Pow(s.mostJobs/s.leastJobs, s.r.Float64()))))
	at := 0.0
	for i := range jobs {
		jobs[i] = drawnJob{user: name, app: app, submitS: at, tookS: s.length(typicalS, mostRunS), limitS: limitS}
		at += sessionGapS * s.r.ExpFloat64()
	}
	return jobs
}

// length draws how long a run takes, s.
func (s *site) length(typicalS, mostS float64) float64 {
	switch x := s.r.Float64(); {
	case x < s.failing:
		return math.Round(leastFailS + (mostFailS-leastFailS)*s.r.Float64())
	case x < s.failing+s.evaluating:
		typicalS *= s.evaluation
	}
	took := math.Inf(1)
	for took > mostS {
		took = typicalS * math.Exp(s.runSig*s.r.NormFloat64())
	}
	return math.Round(max(leastFailS, took))
}

// limitAbove is the first step of the ladder above s, or its last, s.
func limitAbove(s float64) float64 {
	for _, hours := range ladder {
		if hours*3600 >= s {
			return hours * 3600
		}
	}
	return ladder[len(ladder)-1] * 3600
}

// atHours lets sessions begin at hours of the day, so that they bring so much work a second, and returns their jobs in
// order.
func (s *site) atHours(sessions [][]drawnJob, workPerS float64) []drawnJob {
	work := 0.0
	for _, jobs := range sessions {
		for i := range jobs {
			work += jobs[i].tookS
		}
	}
	var out []drawnJob
	for _, jobs := range sessions {
		at := math.Inf(1)
		for !(s.r.Float64() < (1+s.swing*math.Sin(2*math.Pi*at/86400))/(1+s.swing)) {
			at = work / workPerS * s.r.Float64()
		}
		for _, j := range jobs {
			j.submitS += at
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b drawnJob) int { return cmp.Compare(a.submitS, b.submitS) })
	for i := range out {
		out[i].id = fmt.Sprint(i + 1)
	}
	return out
}

// learned is an application's profile as a site has learned it from earlier jobs.
func (s *site) learned(app *rlcore.Profile, jobs []drawnJob) *rlcore.Profile {
	var took []float64
	var past []rlcore.Past
	for _, j := range jobs {
		if j.app == app.App {
			took = append(took, j.tookS)
			past = append(past, rlcore.Past{SoloS: j.tookS, LimitS: j.limitS, User: j.user})
		}
	}
	mean := s.medianS
	if len(took) > 0 {
		mean = stat.Mean(took, nil)
	}
	sd := mean * math.Sqrt(math.Expm1(unknownSigma*unknownSigma))
	if len(took) > 1 {
		sd = stat.StdDev(took, nil)
	}
	p := *app.Stretched(mean)
	p.Runs = len(took)
	p.DurationSD = sd
	p.Past = past[max(0, len(past)-rlcore.MostPast):]
	return &p
}
