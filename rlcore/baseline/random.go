package baseline

import (
	"encoding/binary"
	"hash/fnv"
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

var _ = policy.Register(policy.Spec{
	Name: "random", About: "any allowed combination with the same chance", Rank: 70,
	Live: true, Contender: true,
	New: func(s policy.Setup) (rlcore.Policy, error) { return Random{Seed: s.Seed}, nil },
})

// Random takes any allowed combination with the same chance; waiting only where nothing else is allowed. The draw
// follows from the seed and the window, so that the same window gets the same answer.
type Random struct{ Seed uint64 }

// Name implements rlcore.Policy.
func (Random) Name() string { return "random" }

// Score implements rlcore.Policy.
func (p Random) Score(dst []float64, w *rlcore.Window, combos []rlcore.Combo) {
	h := fnv.New64a()
	put := func(x uint64) { _, _ = h.Write(binary.LittleEndian.AppendUint64(nil, x)) } // a hash's Write never fails
	put(p.Seed)
	put(uint64(w.GPU))
	put(uint64(len(w.Card().Running)))
	put(math.Float64bits(w.State.NowS))
	for i := range w.Jobs {
		_, _ = h.Write([]byte(w.Job(i).ID))
	}
	for k, c := range combos {
		put(uint64(c))
		dst[k] = float64(mix(h.Sum64()) >> 11)
		if c == 0 {
			dst[k] = -1
		}
	}
}

// mix spreads a hash's bits (splitmix64's finaliser): FNV leaves the high ones alike where only the last byte differs.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
