package job

import "testing"

func TestRanks(t *testing.T) {
	r := Ranks{Partitions: map[string]PartitionRank{
		"urgent": {Tier: 10}, "gpu": {Tier: 5, Preemptible: true}, "other": {Tier: 5, Preemptible: true}, "scavenge": {Tier: 1, Preemptible: true}, "kept": {Tier: 1},
	}}
	of := func(partition string) *Job { return &Job{Partition: partition, QOS: "q-" + partition} }
	for _, c := range []struct {
		a, b     string
		alike    bool
		preempts bool // a may preempt b
	}{
		{"gpu", "other", true, false},
		{"gpu", "scavenge", false, true},
		{"scavenge", "gpu", false, false},
		{"urgent", "kept", false, false},
		{"scavenge,gpu", "scavenge", false, true},
		{"gpu,other", "gpu", true, false},
		{"urgent", "nowhere", false, false},
	} {
		if got := r.Of(of(c.a)) == r.Of(of(c.b)); got != c.alike {
			t.Errorf("%s and %s are alike: %v", c.a, c.b, got)
		}
		if got := r.Preempts(of(c.a), of(c.b)); got != c.preempts {
			t.Errorf("%s may preempt %s: %v", c.a, c.b, got)
		}
	}
	none, qos := Ranks{}, Ranks{ByQOS: true}
	if none.Of(of("gpu")) != none.Of(of("urgent")) || none.Preempts(of("urgent"), of("gpu")) || qos.Of(of("gpu")) == qos.Of(of("urgent")) {
		t.Error("without partitions' tiers")
	}
}
