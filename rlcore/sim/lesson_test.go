package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// However much the runs of applications differ in length, their co-runs don't fool the site. Where lengths are known
// well, it learns the true slowdown, within two standard errors of the mean over the seeds. Where they aren't, it learns
// next to nothing, and believes the law as before; and a long run is no broken contract.
func TestLessonsOfRunsThatDiffer(t *testing.T) {
	const truth, contract, jobs, seeds = 1.489, 2.0, 200, 10
	for spread, told := range map[float64]bool{0: true, .05: true, .1: true, .3: false, 1: false} {
		var learned []float64
		broken, law := 0, 0.0
		for seed := range uint64(seeds) {
			rnd := rand.New(rand.NewPCG(seed, 0x1e55))
			sigma := math.Sqrt(math.Log1p(spread * spread))
			known := map[string]*rlcore.Profile{}
			for _, app := range []string{"a", "b"} {
				known[app] = constant(app, 1000, .7, 100)
				known[app].DurationSD = spread * 1000
			}
			cfg := Config{
				Truth: Pairs{{"a", "b"}: truth, {"b", "a"}: truth, {"a", "a"}: truth, {"b", "b"}: truth}, Foretell: true,
				GPUs: []rlcore.GPUSpec{{MemMiB: 12000, MaxClients: 2}}, MaxSlowdown: contract,
			}
			for i := range jobs {
				app := []string{"a", "b"}[rnd.IntN(2)]
				took := 1000 * math.Exp(sigma*rnd.NormFloat64()-sigma*sigma/2)
				cfg.Jobs = append(cfg.Jobs, Arrival{
					Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: known[app]}, Truth: known[app].Stretched(took),
				})
			}
			predicted := func(m *interference.Model) float64 {
				p := make([]rlcore.Prediction, 2)
				m.Predict(p, &cfg.GPUs[0], []*rlcore.Profile{known["a"], known["b"]})
				return p[0].Slowdown
			}
			site := &doubting{Model: interference.New(&contention.MPS)}
			law = predicted(site.Model)
			cfg.Predictor, cfg.Observer = site.Model, site
			d := crowded()
			d.M = 3
			run(t, cfg, d)
			learned = append(learned, predicted(site.Model))
			broken += site.broken
		}
		mean, sd := stat.MeanStdDev(learned, nil)
		t.Logf("spread %.2f: learned %.3f ± %.3f, %d contracts of %d runs broken", spread, mean, sd, broken, jobs*seeds)
		want, most := truth, max(.001, 2*sd/math.Sqrt(seeds))
		if !told {
			want, most = law, .05
		}
		if math.Abs(mean-want) > most || broken*44 > jobs*seeds {
			t.Errorf("spread %.2f: learned %.3f, want %.3f ± %.3f; %d contracts broken", spread, mean, want, most, broken)
		}
	}
}

// doubting is a site's model that counts broken contracts.
type doubting struct {
	*interference.Model
	broken int
}

func (d *doubting) Doubt(victim rlcore.Identity, others []rlcore.Identity) {
	d.broken++
	d.Model.Doubt(victim, others)
}
