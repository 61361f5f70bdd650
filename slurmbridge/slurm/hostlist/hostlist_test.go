package hostlist

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"n1", "n[1-3,07],login", "r[0-1]n[08-11]-ib", "n[1-", "n]1[", "a[0-99999]b[0-99999]", "n[1-2]x,,n[3]",
		"n[" + strings.Repeat("0-99999,", 100) + "0]", strings.Repeat("n[1]", 50), "n[0000000000000-9]", "n[2-1]", "n[１]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names := Names(list)
		if len(names) > maxNames+strings.Count(list, ",")+1 {
			t.Errorf("%d names", len(names))
		}
		size := 0
		for _, name := range names {
			size += len(name)
		}
		if size > maxNames*(maxName+maxGroups*maxWidth)+len(list) {
			t.Errorf("%d bytes of names", size)
		}
		if !strings.ContainsAny(list, "[](),") && list != "" && (len(names) != 1 || names[0] != list) {
			t.Errorf("%q became %v", list, names)
		}
		// What a list stands for is a list again.
		if len(names) < 50 {
			for _, name := range names {
				if again := Names(name); !strings.ContainsAny(name, "[](),") && !slices.Equal(again, []string{name}) {
					t.Errorf("%q became %v", name, again)
				}
			}
		}
	})
}

func TestNames(t *testing.T) {
	for list, want := range map[string]string{
		"":                    "",
		"n1":                  "n1",
		"n[1-3,07],login":     "n1 n2 n3 n07 login",
		"r[1-2]n[09-10]-ib,x": "r1n09-ib r1n10-ib r2n09-ib r2n10-ib x",
		"n[3-1],n[a],n[":      "n[3-1] n[a] n[",
		"n[1-200000],m":       "n[1-200000] m",
		"a[0-999]b[0-999]":    "a[0-999]b[0-999]",
		"n[0000000000-1]":     "n[0000000000-1]",
	} {
		must.Equal(t, Names(list), strings.Fields(want), list)
	}
	for list, want := range map[string][]int{
		"0": {0}, "0-1,3": {0, 1, 3}, "2,0-1": {2, 0, 1}, "": nil, "3-1": nil, "-1": nil, "0-9": nil, "x": nil, "1,": nil,
	} {
		got, ok := Numbers(list, 8)
		must.Equal(t, got, want, list)
		must.Equal(t, ok, want != nil, list)
	}
}

// A list that a user wrote costs no more than its length and the names that any list may come to, however it is made.
func TestHostileLists(t *testing.T) {
	const size = 300_000
	for name, list := range map[string]string{
		"the same range":   "n[" + strings.Repeat("0-99999,", size/8) + "0]",
		"many ranges":      strings.Repeat("n[0-99999],", size/11),
		"many small lists": strings.Repeat("n[0-99],m[0-9],", size/15),
		"one host often":   strings.Repeat("n1,", size/3),
		"nested":           strings.Repeat("n[1]", size/4),
		"open brackets":    strings.Repeat("[", size),
		"products":         strings.Repeat("[0-9][0-9][0-9][0-9][0-9],", size/26),
		"wide":             "n[" + strings.Repeat("0", size) + "-99999]",
		"long":             strings.Repeat("n", size) + "[0-99999]",
	} {
		var names []string
		allocs := testing.AllocsPerRun(1, func() { names = Names(list) })
		// A name is its text and its part of a few others, a range a few bounds.
		if limit := float64(10*maxNames + size); allocs > limit || len(names) > maxNames+size {
			t.Errorf("%s: %d names, %.0f allocations, more than %.0f", name, len(names), allocs, limit)
		}
	}
}
