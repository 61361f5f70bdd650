package text

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

func TestParseRequest(t *testing.T) {
	const whole, shared, shares = job.WholeGPU, job.SharedGPU, job.Shares
	for _, tc := range []struct {
		in   TRES
		want job.GPURequest
	}{
		{TRES{}, job.GPURequest{}},
		{TRES{PerNode: "N/A", PerJob: "N/A", PerSocket: "N/A", PerTask: "N/A"}, job.GPURequest{}},
		{TRES{PerNode: "gres:gpu:1"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu:1"}},
		{TRES{PerNode: "gres:gpu"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu"}},
		{TRES{PerNode: "gres/gpu:titanxp:2"}, job.GPURequest{Kind: whole, Count: 2, Raw: "gres/gpu:titanxp:2"}},
		{TRES{PerNode: "gres/gpu=3"}, job.GPURequest{Kind: whole, Count: 3, Raw: "gres/gpu=3"}},
		{TRES{PerNode: "gres:gpu:a:1,gres:gpu:b:2"}, job.GPURequest{Kind: whole, Count: 3, Raw: "gres:gpu:a:1,gres:gpu:b:2"}},
		{TRES{PerNode: "gres:gpu:titanxp"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu:titanxp"}},
		{TRES{PerNode: "gres:gpu:shared"}, job.GPURequest{Kind: shared, Count: 1, Raw: "gres:gpu:shared"}},
		{TRES{PerNode: "gres/gpu:shared:1"}, job.GPURequest{Kind: shared, Count: 1, Raw: "gres/gpu:shared:1"}},
		{TRES{PerJob: "gres:gpu:shared:1"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu:shared:1"}},
		{TRES{PerTask: "gres/gpu:shared=1"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres/gpu:shared=1"}},
		{TRES{PerNode: "gres:mps:100"}, job.GPURequest{Kind: shares, Sharing: job.MPS, Count: 100, Raw: "gres:mps:100"}},
		{TRES{PerNode: "gres/mps:50"}, job.GPURequest{Kind: shares, Sharing: job.MPS, Count: 50, Raw: "gres/mps:50"}},
		{TRES{PerNode: "mps:titanxp:50"}, job.GPURequest{Kind: shares, Sharing: job.MPS, Count: 50, Raw: "mps:titanxp:50"}},
		{TRES{PerNode: "gres/shard:34"}, job.GPURequest{Kind: shares, Sharing: job.Shard, Count: 34, Raw: "gres/shard:34"}},
		{TRES{PerNode: "gres/mps:1K"}, job.GPURequest{Kind: shares, Sharing: job.MPS, Count: 1024, Raw: "gres/mps:1K"}},
		// Gres=mps:50 would take the nic away.
		{TRES{PerNode: "gres/nic:2,gres/mps:100"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres/nic:2,gres/mps:100"}},
		{TRES{PerNode: "gres/mps:a:50,gres/mps:b:50"}, job.GPURequest{Kind: whole, Count: 2, Raw: "gres/mps:a:50,gres/mps:b:50"}},
		{TRES{PerNode: "gres:gpu:shared,gres:nic"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu:shared,gres:nic"}},
		{TRES{PerNode: "gres/nic:2"}, job.GPURequest{}},
		{TRES{PerNode: "gres:none"}, job.GPURequest{}},
		{TRES{PerTask: "cpu=2,gres/gpu=1"}, job.GPURequest{Kind: whole, Count: 1, Raw: "cpu=2,gres/gpu=1"}},
		{TRES{PerTask: "cpu=2"}, job.GPURequest{}},
		{TRES{PerSocket: "gres:gpu:1"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres:gpu:1"}},
		{TRES{PerNode: "gres:gpu:2", PerJob: "gres:gpu:4"}, job.GPURequest{Kind: whole, Count: 4, Raw: "gres:gpu:2,gres:gpu:4"}},
		// Shares of a task are no shares that Gres= could rewrite.
		{TRES{PerTask: "gres/mps:50"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres/mps:50"}},
		{TRES{PerNode: "gres/mps:50", PerTask: "gres/mps:50"}, job.GPURequest{Kind: whole, Count: 1, Raw: "gres/mps:50,gres/mps:50"}},
	} {
		if got := ParseRequest(tc.in); got != tc.want {
			t.Errorf("%+v:\n got %+v\nwant %+v", tc.in, got, tc.want)
		}
	}
}

func TestParseGres(t *testing.T) {
	for in, want := range map[string][]Gres{
		"":                                   nil,
		"gpu:titanxp:1,mps:100":              {{"gpu", "titanxp", 1}, {"mps", "", 100}},
		"gpu:a100:4(S:0-1),shard:400(S:0,1)": {{"gpu", "a100", 4}, {"shard", "", 400}},
		"gpu":                                {{"gpu", "", 1}},
		"gpu:0,,:":                           {{"gpu", "", 0}},
		"gpu:k80:2(IDX:0,1),craynetwork:3":   {{"gpu", "k80", 2}, {"craynetwork", "", 3}},
	} {
		if got := slices.Collect(ParseGres(in)); !slices.Equal(got, want) {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		"gres:gpu:1", "gres:gpu:shared:1", "gres/mps:50", "gres:shard:50(S:0,1)", "cpu=2,gres/gpu=1", "N/A", "mps", "gpu:(,),:",
		"gres/gpu:99999999999999999999", "gres:mps:2147483647M,gres:mps:2147483647M",
	} {
		f.Add(s, "N/A", "", "gres:gpu:1")
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		ask := ParseRequest(TRES{a, b, c, d})
		if ask.Kind == job.NoGPU && ask != (job.GPURequest{}) {
			t.Errorf("no GPU, but %+v", ask)
		}
		if ask.Count < 0 {
			t.Errorf("count %d", ask.Count)
		}
		if (ask.Kind == job.Shares) != (ask.Sharing != "") {
			t.Errorf("kind and sharing disagree: %+v", ask)
		}
		if ask.Kind != job.NoGPU && !strings.Contains(ask.Raw, "gpu") && !strings.Contains(ask.Raw, "mps") && !strings.Contains(ask.Raw, "shard") {
			t.Errorf("a GPU out of nothing: %+v", ask)
		}
		if ParseRequest(TRES{PerNode: a}) != parseRequestList(a) {
			t.Error("a request per node is the request")
		}
	})
}

func TestParseDependencies(t *testing.T) {
	dep := func(typ, on, rest string) job.Dependency {
		return job.Dependency{Type: typ, Job: on, Rest: rest}
	}
	for _, tc := range []struct {
		in   string
		or   bool
		want []job.Dependency
	}{
		{"", false, nil},
		{"(null)", false, nil},
		{"after:12(unfulfilled)", false, []job.Dependency{dep("after", "12", "")}},
		{"afterok:1(unfulfilled)?afterany:2(unfulfilled)", true, []job.Dependency{dep("afterok", "1", ""), dep("afterany", "2", "")}},
		{"after:22_*+5(unfulfilled),afterany:1(unfulfilled)", false, []job.Dependency{dep("after", "22", "+5"), dep("afterany", "1", "")}},
		{"afterok:7_3(failed)", false, []job.Dependency{dep("afterok", "7_3", "")}},
		{"afterany:1:2_4:3", false, []job.Dependency{dep("afterany", "1", ""), dep("afterany", "2_4", ""), dep("afterany", "3", "")}},
		{"singleton(unfulfilled)", false, []job.Dependency{dep("singleton", "", "")}},
		{"after:x", false, []job.Dependency{dep("after", "", "x")}},
		{"aftercorr:9_", false, []job.Dependency{dep("aftercorr", "9", "_")}},
	} {
		d := ParseDependencies(tc.in)
		if d.Or != tc.or || !reflect.DeepEqual(d.List, tc.want) {
			t.Errorf("%q: or %v, %+v", tc.in, d.Or, d.List)
		}
	}
	d := ParseDependencies("after:12(unfulfilled)")
	if !d.Only("after", "12") || d.Only("after", "1") {
		t.Error("after:12 is not understood")
	}
}

func FuzzParseDependencies(f *testing.F) {
	for _, s := range []string{"after:12+5(unfulfilled),afterok:7_2(unfulfilled)", "a?b", "singleton", "after:22_*", ":::", "(null)", "after:(", "?,?,", "0:0_*00", "0:0_*_1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := ParseDependencies(s)
		if d.Or != (!IsNone(s) && strings.Contains(s, "?")) {
			t.Errorf("or: %v", d.Or)
		}
		for _, x := range d.List {
			if x.Job != "" && refLen(x.Job) != len(x.Job) {
				t.Errorf("job %q", x.Job)
			}
			if x.Type == "" {
				t.Errorf("no type: %+v", x)
			}
		}
		// What is written for scontrol is read as the same conditions.
		if again := ParseDependencies(d.Plain()); !slices.ContainsFunc(d.List, func(x job.Dependency) bool { return x.Job == "" && x.Rest != "" }) &&
			!IsNone(d.Plain()) && !slices.Equal(again.List, d.List) {
			t.Errorf("%+v became %+v", d.List, again.List)
		}
		// A condition is never lost: a list with one in it is not an empty list.
		if len(d.List) == 0 && strings.HasPrefix(s, "after:") {
			t.Error("a condition was lost")
		}
		// What the parser hands out may be appended to by several jobs.
		if cap(d.List) != len(d.List) {
			t.Error("appending would write into shared memory")
		}
	})
}
