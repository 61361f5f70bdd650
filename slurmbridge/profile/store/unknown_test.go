package store

import (
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// A run whose use of the GPU can't be read teaches nothing, unless the site wants it assumed: then its memory counts as
// read. What isn't known of its memory is never assumed.
func TestUnknownUse(t *testing.T) {
	for name, c := range map[string]struct {
		unknown []string
		assumed float64
		want    *rlcore.Use
	}{
		"as it is":              {[]string{"gpu", "core"}, 0, nil},
		"assumed":               {[]string{"gpu", "core"}, .4, &rlcore.Use{GPU: .4, Core: .4, MemMiB: 2000}},
		"known, nothing to do":  {nil, .4, &rlcore.Use{GPU: .9, Core: .1, MemMiB: 2000}},
		"the memory is unknown": {[]string{"gpu", "mem"}, .4, nil},
	} {
		s := opened(t, filepath.Join(t.TempDir(), "s.db"))
		s.AssumedUse = c.assumed
		r := record(1, "ann", 50)
		r.Series, r.Unknown = []rlcore.Use{{GPU: .9, Core: .1, MemMiB: 2000}}, c.unknown
		must.Equal(t, must.Get(s.Learn(t.Context(), s.DB(), "lmp", r, 0, false))(t), c.want != nil, "%s: learned", name)
		if c.want == nil {
			continue
		}
		must.Equal(t, must.Get(s.Lookup(t.Context(), "ann", "lmp", ""))(t).Series[0], *c.want, name)
	}
}
