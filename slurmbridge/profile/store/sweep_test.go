package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// Of a made-up week of sweeps no more than one job in twenty waits until its own application has run alone: the others are
// known, or estimated from relatives. A sweep over names takes a run for each name.
func TestSweepsShare(t *testing.T) {
	type submitted struct{ script, args string }
	sweeps := map[string]func(i int) submitted{
		"seeds and learning rates in the script": func(i int) submitted {
			return submitted{fmt.Sprintf("python train.py --lr %g --seed %d -o out/run_%d", []float64{.1, .03, .01}[i%3], i, i), ""}
		},
		"batch sizes in the script": func(i int) submitted {
			return submitted{fmt.Sprintf("python train.py --batch-size %d --seed %d", 32<<(i%4), i), ""}
		},
		"models in the script": func(i int) submitted {
			return submitted{fmt.Sprintf("python train.py --model %s --seed %d", []string{"resnet", "vgg", "vit"}[i%3], i), ""}
		},
		"a number as the argument": func(i int) submitted { return submitted{"./simulate $1", fmt.Sprint(i + 1)} },
		"files in a row":           func(i int) submitted { return submitted{"./analyse $1", fmt.Sprintf("~abcdefgh_%03d.f", i)} },
		"sizes and seeds by --export": func(i int) submitted {
			return submitted{"./lj -n $N --seed $SEED", fmt.Sprintf("N=%d SEED=%d", 1000*(1+i%8), i)}
		},
		"one script": func(int) submitted { return submitted{"srun ./md -in in.lj", ""} },
	}
	const each = 100
	alone := 0
	for name, sweep := range sweeps {
		s := opened(t, filepath.Join(t.TempDir(), "s.db"))
		first := 0
		for i := range each {
			j := sweep(i)
			a := appid.Identify("", []byte(j.script), j.args)
			if err := s.SetFamily(t.Context(), "ann", a); err != nil {
				t.Fatal(err)
			}
			_, err := s.Lookup(t.Context(), "ann", a.Key, "")
			if errors.Is(err, ErrNotFound) {
				_, err = s.Relative(t.Context(), "ann", a.Key, "")
			}
			switch {
			case errors.Is(err, ErrNotFound):
				first++
				if ok, err := s.Learn(t.Context(), a.Key, record(int64(i+1), "ann", 50)); err != nil || !ok {
					t.Fatal(ok, err)
				}
			case err != nil:
				t.Fatal(err)
			}
		}
		t.Logf("%-40s %d of %d", name, first, each)
		alone += first
	}
	if all := each * len(sweeps); 20*alone > all {
		t.Errorf("%d of %d jobs wait for a first run of their own", alone, all)
	}
}
