package extend_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/extend"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

const m = time.Minute

// profile is an application's whose runs take so long, with a standard deviation.
func profile(soloS, sd float64) *rlcore.Profile {
	return &rlcore.Profile{DurationS: soloS, DurationSD: sd, PeriodS: soloS, Series: []rlcore.Use{{}}}
}

func TestRaise(t *testing.T) {
	for _, c := range []struct {
		name                string
		runS, doneS, leastS float64
		slow, soloS, sd     float64
		limit, own          time.Duration
		contract            float64
		want                time.Duration
	}{
		{"well within its limit", 600, 400, 300, 1.5, 1800, 0, 60 * m, 60 * m, 0, 0},
		{"would end 20 min after its limit", 600, 300, 300, 2, 2400, 0, 60 * m, 60 * m, 0, 40 * m},
		{"never shared", 3590, 3590, 3590, 1, 1800, 0, 60 * m, 60 * m, 0, 0},
		{"runs on after it should have ended", 3580, 2000, 1790, 1.5, 1800, 0, 60 * m, 60 * m, 0, 30 * m},
		{"hangs: it did its own limit's work at the least", 7200, 5000, 3600, 1.5, 1800, 0, 120 * m, 60 * m, 0, 0},
		{"runs to its limit alone", 3540, 2950, 1770, 1.2, 3600, 0, 60 * m, 60 * m, 0, 12 * m},
		{"runs to its limit alone, and was given all that cost", 4310, 3592, 2155, 1.2, 3600, 0, 72 * m, 60 * m, 0, 0},
		{"no more than its contract", 600, 300, 300, 2, 2400, 0, 60 * m, 60 * m, 1.5, 30 * m},
		{"its contract is used up", 5350, 2675, 2675, 2, 3300, 0, 90 * m, 60 * m, 1.5, 0},
		{"runs differ, and this one is longer than most", 3580, 2387, 1790, 1.5, 1800, 900, 60 * m, 60 * m, 0, 26 * m},
		{"no limit", 3590, 1800, 1800, 2, 2400, 0, 0, 0, 0, 0},
		{"lent before, and slower still", 5000, 3000, 2500, 2, 3500, 0, 90 * m, 60 * m, 0, 12 * m},
	} {
		of := extend.Claim{
			Progress: job.Progress{RunS: c.runS, DoneS: c.doneS, LeastS: c.leastS, Slow: c.slow},
			Profile:  profile(c.soloS, c.sd), Limit: c.limit, Own: c.own, Contract: c.contract,
		}
		must.Equal(t, of.Raise(m), c.want, c.name)
	}
}

func draw(t *rapid.T) *extend.Claim {
	own := time.Duration(rapid.IntRange(1, 3000).Draw(t, "own")) * m
	run := rapid.Float64Range(0, 4*own.Seconds()).Draw(t, "run")
	least := run * rapid.Float64Range(0, 1).Draw(t, "least")
	return &extend.Claim{
		Progress: job.Progress{
			RunS: run, LeastS: least, DoneS: rapid.Float64Range(least, run).Draw(t, "done"),
			Slow: rapid.Float64Range(0, 8).Draw(t, "slow"),
		},
		Profile: profile(
			rapid.Float64Range(1, 2*own.Seconds()).Draw(t, "solo"), rapid.Float64Range(0, own.Seconds()).Draw(t, "SD"),
		),
		Own: own, Limit: own + time.Duration(rapid.IntRange(0, 3000).Draw(t, "lent"))*m,
		Contract: rapid.SampledFrom([]float64{0, 1, 1.5, 2.5}).Draw(t, "contract"),
	}
}

// However a job fares: it isn't lent more than sharing costs it, rounded up to a minute, nor more than its
// contract allows, and nothing where it never shared. What it is lent brings its end within its limit, as far
// as the contract allows, and asking again at once gives nothing.
func TestRaiseIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := draw(t)
		margin := time.Duration(rapid.IntRange(0, 600).Draw(t, "margin")) * time.Second
		cost, end := c.CostS()
		by := c.Raise(margin)
		lent := c.Limit + by - c.Own
		switch {
		case by < 0 || by%m != 0:
			t.Fatalf("raised by %v", by)
		case by > 0 && lent.Seconds() > math.Ceil(cost/60)*60+1e-6:
			t.Fatalf("lent %v for a cost of %.1f s", lent, cost)
		case by > 0 && c.Contract > 0 && (c.Limit+by).Seconds() > c.Own.Seconds()*c.Contract+1e-6:
			t.Fatalf("a limit of %v with a contract of %g on %v", c.Limit+by, c.Contract, c.Own)
		case by > 0 && c.RunS == c.LeastS && c.Slow <= 1:
			t.Fatalf("raised by %v without sharing", by)
		case by > 0 && end+margin.Seconds() <= c.Limit.Seconds():
			t.Fatalf("raised by %v without need", by)
		}
		if c.Contract == 0 && end > (c.Limit+by).Seconds()+1e-6 {
			t.Fatalf("it ends at %.1f s, with a limit of %v raised by %v", end, c.Limit, by)
		}
		c.Limit += by
		if again := c.Raise(margin); again != 0 {
			t.Fatalf("then by another %v", again)
		}
	})
}

// A job that its GPU serves as the worst case says is never ended with less solo work than its own limit,
// nor kept for more than that: a year of polls lends what is needed and then stops.
func TestAJobThatHangsIsEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		own := time.Duration(rapid.IntRange(1, 300).Draw(t, "own")) * m
		solo := own.Seconds() * rapid.Float64Range(0.05, 1.5).Draw(t, "solo")
		sd := solo * rapid.SampledFrom([]float64{0, .5, 2}).Draw(t, "spread")
		worst := rapid.Float64Range(1, 6).Draw(t, "worst")
		slow := rapid.Float64Range(1, worst).Draw(t, "slow")
		limit := own
		for run := 0.0; run < limit.Seconds(); run += 30 {
			c := extend.Claim{
				Progress: job.Progress{RunS: run, DoneS: run / slow, LeastS: run / worst, Slow: slow},
				Profile:  profile(solo, sd), Own: own, Limit: limit,
			}
			limit += c.Raise(m)
		}
		if most := own.Seconds()*worst + 120; limit.Seconds() > most {
			t.Fatalf("%v became %v, at most %.0f s", own, limit, most)
		}
		if work := limit.Seconds() / slow; work < own.Seconds()-1 && solo >= own.Seconds() {
			t.Fatalf("ended after %.0f s of solo work, of %v", work, own)
		}
	})
}

func TestLatest(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	n1 := map[string]bool{"n1": true}
	j := job.Job{Partition: "gpu", Nodes: "n1"}
	due := j
	due.Deadline = in(45 * m)
	reserved := j
	reserved.Reservation = "course"
	most := func(limit time.Duration, r ...job.Reservation) job.Bounds {
		return job.Bounds{MaxTime: map[string]time.Duration{"gpu": limit}, Reservations: r}
	}
	reservation := func(name string, start time.Duration, nodes map[string]bool) job.Reservation {
		return job.Reservation{Name: name, Start: in(start), End: in(90 * m), Nodes: nodes}
	}
	for name, c := range map[string]struct {
		job  job.Job
		b    job.Bounds
		want time.Duration
	}{
		"its partition's":              {j, most(90 * m), 90 * m},
		"an unknown partition":         {j, job.Bounds{MaxTime: map[string]time.Duration{"cpu": 0}}, 0},
		"a maintenance":                {j, most(0, reservation("maint", 30*m+59*time.Second, n1)), 40 * m},
		"a maintenance, nodes unknown": {j, most(0, reservation("maint", 30*m, nil)), 40 * m},
		"one that has begun":           {j, most(0, reservation("maint", -30*m, n1)), 0},
		"its own reservation":          {reserved, most(0, reservation("course", -30*m, n1)), 100 * m},
		"its owner's deadline":         {due, most(0), 55 * m},
		"the soonest of them":          {due, most(50 * m), 50 * m},
	} {
		must.Equal(t, extend.Latest(&c.job, now, 600, &c.b), c.want, name)
	}
	past := reservation("past", -60*m, n1)
	past.End = in(-m)
	others := most(0, past, reservation("elsewhere", m, map[string]bool{"n2": true}))
	must.Equal(t, extend.Latest(&j, now, 600, &others) > 365*24*time.Hour, true, "others' reservations")
}
