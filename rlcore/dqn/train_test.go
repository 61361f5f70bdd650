package dqn

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// TestTrainingIsReproducible to the last bit, on one core as on several.
func TestTrainingIsReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	a := trained(t, 6)
	was := runtime.GOMAXPROCS(1)
	b := trained(t, 6)
	runtime.GOMAXPROCS(was)
	if !sameTheta(a.Net, b.Net) || !slices.Equal(a.Curve, b.Curve) {
		t.Errorf("the same seed gave two trainings")
	}
	if a.Curve[len(a.Curve)-1].Loss == 0 {
		t.Errorf("nothing was learned")
	}
	c := short(6)
	c.Options.Seed = 4
	must.OK(t, c.Train(context.Background()))
	if slices.Equal(a.Curve, c.Curve) {
		t.Errorf("another seed gave the same training")
	}
}

// TestBestIsKept: a rate that ruins the network leaves what it began with, and any other what validated best.
func TestBestIsKept(t *testing.T) {
	for _, rate := range []float64{1e-2, 1e6} {
		tr := short(12)
		tr.Options.Rate = rate
		start := snapshot(tr.Net)
		must.OK(t, tr.Train(context.Background()))
		check := must.Get(tr.episodes(3^0xf17a1, 16))(t)
		guard := newGuard()
		again, err := validate([]*player{{net: tr.Net, guard: guard, m: 4}}, check)
		if err != nil || mean(again) != tr.Best {
			t.Errorf("rate %v: the network that is left validates with %v, the best was %v (%v)", rate, mean(again), tr.Best,
				err)
		}
		first := must.Get(validate([]*player{{net: newNet(), guard: guard, m: 4}}, check))(t)
		if tr.Best > mean(first) {
			t.Errorf("rate %v: best is %v of round %d, it began with %v", rate, tr.Best, tr.BestRound, mean(first))
		}
		round := tr.BestRound
		if round == 0 && !slices.EqualFunc(start, snapshot(tr.Net), slices.Equal) {
			t.Errorf("rate %v: nothing was better than the start, but the parameters changed", rate)
		}
	}
}

// TestCancelKeepsWhatWasLearned so far, and where it stood.
func TestCancelKeepsWhatWasLearned(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tr := known(80)
	tr.Progress = func(p RoundStats) {
		if tr.BestRound > 0 {
			cancel()
		}
	}
	if err := tr.Train(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("ended with %v", err)
	}
	n := len(tr.Curve)
	if tr.BestRound == 0 || n >= 80 || tr.Curve[n-1].Round != n {
		t.Fatalf("best in round %d of %d", tr.BestRound, n)
	}
	if slices.EqualFunc(snapshot(tr.Net), snapshot(known(1).Net), slices.Equal) {
		t.Error("what was learned is lost")
	}
	must.Equal(t, FromTrainer(tr, "", "").Trained.Rounds, n, "the round of a checkpoint")
}

func TestTrainRefuses(t *testing.T) {
	broken := errors.New("no more paper")
	tr := short(2)
	tr.Scenario = func(*rand.Rand) (sim.Config, error) { return sim.Config{}, broken }
	must.Is(t, tr.Train(context.Background()), broken)
	tr.Scenario = func(*rand.Rand) (sim.Config, error) { return sim.Config{}, nil }
	must.Is(t, tr.Train(context.Background()), sim.ErrBadConfig)
}
