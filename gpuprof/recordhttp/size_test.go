package recordhttp

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Even a series that nothing can be packed of, in steps such as NVML counts in, and
// means of them, is far from what a record may be.
func TestSizeOnTheWire(t *testing.T) {
	src := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name   string
		points int
		step   func(v float64) float64
	}{
		{"summary", 0, nil},
		{"60 points as read", 60, math.Round},
		{"512 points as read", gpuprof.MaxPoints, math.Round},
		{"512 points, means", gpuprof.MaxPoints, func(v float64) float64 { return v }},
	} {
		r := record(123456)
		r.Comment, r.End, r.Series = "app=lammps", r.Start.Add(time.Hour), nil
		r.GPUs = []gpuprof.GPU{{UUID: "GPU-8f6c1d22-5c1e-4f0e-9d0b-2b9c7a1f0e11", Model: "NVIDIA TITAN Xp", Arch: "pascal", MemMiB: 12196, PCIeMBps: 15754}}
		for range c.points {
			r.Series = append(r.Series, rlcore.Use{
				GPU: c.step(100*src.Float64()) / 100, Core: c.step(100*src.Float64()) / 100,
				MemMiB: c.step(12196 * src.Float64()), PCIeMBps: c.step(15754 * src.Float64()),
			})
		}
		packed, err := pack(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", c.name, len(packed))
		if len(packed) > maxPacked/10 {
			t.Errorf("%s: %d bytes packed", c.name, len(packed))
		}
		if back, err := unpack(packed); err != nil || len(back.Series) != c.points {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
