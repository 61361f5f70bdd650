package cluster

import "testing"

func TestStat(t *testing.T) {
	for text, want := range map[string]Load{
		"cpu  10 1 9 70 10 0 0 0 5 5\ncpu0 1 1": {busy: 20, all: 100},
		"":                                      {},
		"cpu 1 2":                               {},
		"cpu a b c d e f":                       {},
		"intr 1 2 3 4 5 6 7":                    {},
	} {
		if got := parseStat(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}
