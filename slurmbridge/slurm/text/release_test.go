package text

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

func TestUpdateErrorsNameTasks(t *testing.T) {
	for line, want := range map[string][]string{
		"Job dependency problem for job 8": {"8"},
		"22_2: x":                          {"22_2"},
		"22_[2]: x":                        {"22_2"},
		"22_0-3: x":                        {"22_0", "22_1", "22_2", "22_3"},
		"22_[0-1,7]: x":                    {"22_0", "22_1", "22_7"},
		"22: x":                            {"22"},
		"22_[0-4000000]: x":                {"22"},
		"22_[3-1]: x":                      {"22"},
		"22_[2: x":                         nil,
		"22_2]: x":                         nil,
		"scontrol: error: Invalid job ID 22,22_2": nil,
	} {
		must.Equal(t, slices.Sorted(maps.Keys(UpdateErrors(line))), want, line)
	}
}

// gateRow is the gate as 22.05 and later print it.
func gateRow(change func(plain *[numPlain]string, free *[numFree]string)) string {
	plain := plainRow("7")
	plain[pUID], plain[pUser], plain[pLimit], plain[pRequeue] = "64030", "slurm", "1:00", "0"
	plain[pEligible], plain[pDeadline], plain[pCPUs], plain[pTRES] = "1700000060", "1700000118", "1",
		"cpu=1,mem=1M,node=1,billing=1"
	plain[pExclusive] = "OK"
	var free [numFree]string
	for i := range free {
		free[i] = "N/A"
	}
	free[fDependency], free[fReason], free[fComment] = "", "BeginTime", job.GateName
	change(&plain, &free)
	return row("~N", "7", plain, free)
}

// A made-up release in which one word after the other has changed its meaning: each is noticed, by its name.
func TestMadeUpRelease(t *testing.T) {
	gate := func(release string, change func(*[numPlain]string, *[numFree]string)) []job.Misread {
		t.Helper()
		p := QueueParser{
			Release: release, Ours: func(uid uint32) bool { return uid == 64030 }, Apart: map[string]bool{"whole": true},
		}
		_, gates, err := p.Parse(nil, []byte(gateRow(change)), "~N")
		if err != nil || len(gates) != 1 {
			t.Fatalf("%d gates, %v", len(gates), err)
		}
		return gates[0].Misread
	}
	must.Equal(t, gate("22.05.8", func(*[numPlain]string, *[numFree]string) {}), nil, "as it is")
	notices := func(field string, change func(*[numPlain]string, *[numFree]string)) {
		t.Helper()
		if bad := gate("22.05.8", change); len(bad) == 0 || bad[0].Field != "squeue's "+field {
			t.Errorf("%s: %v", field, bad)
		}
	}
	for field, says := range map[int]string{
		pTask: "0", pHet: "7", pUser: "", pPartition: "(null)", pSubmit: "2023-11-14T22:13", pEligible: "+60", pLimit: "60",
		pDeadline: "118", pCPUs: "none", pRequeue: "1", pNodeList: "n1",
	} {
		notices(plain[field], func(p *[numPlain]string, _ *[numFree]string) { p[field] = says })
	}
	notices("oversubscribe", func(p *[numPlain]string, _ *[numFree]string) { p[pExclusive] = "NO" })
	if bad := gate("22.05.8", func(p *[numPlain]string, _ *[numFree]string) {
		p[pExclusive], p[pPartition] = "NO", "gpu,whole"
	}); len(bad) > 0 {
		t.Errorf("in a partition whose jobs keep others off their nodes: %v", bad)
	}
	notices("numnodes", func(p *[numPlain]string, _ *[numFree]string) { p[pNodes], p[pTRES] = "0", "cpu=1,mem=1M" })
	notices("tres-per-node", func(_ *[numPlain]string, f *[numFree]string) { f[fPerNode] = "gres/none" })
	notices("tres-per-job", func(_ *[numPlain]string, f *[numFree]string) { f[fPerJob] = "-" })
	// Columns in another order.
	if bad := gate("22.05.8", func(p *[numPlain]string, _ *[numFree]string) {
		p[pSubmit], p[pEligible], p[pStart], p[pLimit] = p[pStart], p[pSubmit], p[pLimit], p[pEligible]
	}); len(bad) < 2 {
		t.Errorf("columns in another order: %v", bad)
	}
}

func TestParseDescriptions(t *testing.T) {
	got := must.Get(ParseDescriptions([]byte("7|N/A|FAILED|1|1700000000|1700000060|\n" +
		"20|3|COMPLETED|0|1700000000|2023-11-14T22:14:20|\n20|[4-9]|PENDING|0|N/A|N/A|\n8|N/A|RUNNING|1|1700000000|N/A|\n")))(t)
	from, to := time.Unix(1_700_000_000, 0), time.Unix(1_700_000_060, 0)
	must.Equal(t, got, map[string]job.Description{
		"7": {State: "FAILED", Requeue: true, Start: from, End: to}, "20_3": {State: "COMPLETED", Start: from, End: to.UTC()},
		"8": {State: "RUNNING", Requeue: true, Start: from},
	})
	for _, bad := range []string{"7|N/A|FAILED|1", "7|FAILED|\n", "7|N/A|FAILED|1|1|1|1|\n", "\n"} {
		must.Fail(t, must.Err(ParseDescriptions([]byte(bad))), "", bad)
	}
}

// However the output is cut into pieces, short fields come through and long ones are cut.
func TestLongFieldsAreCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const mark = "~#~"
		field := rapid.Custom(func(t *rapid.T) string {
			n := rapid.SampledFrom([]int{0, 1, 3, 50, MostOfField - 1, MostOfField, MostOfField + 1, 3 * MostOfField}).Draw(t,
				"bytes")
			return strings.Repeat(rapid.SampledFrom([]string{"a", "~", "#"}).Draw(t, "of"), n)
		})
		fields := rapid.SliceOfN(field, 0, 6).Draw(t, "fields")
		var in, want bytes.Buffer
		for _, f := range fields {
			in.WriteString(f + mark)
		}
		last := rapid.SampledFrom([]string{"", "\n", "x~#"}).Draw(t, "rest")
		in.WriteString(last)
		// What a field holds may itself run into the mark: the first mark ends it.
		for text := in.Bytes(); ; {
			f, rest, ok := bytes.Cut(text, []byte(mark))
			want.Write(f[:min(len(f), MostOfField)])
			if len(f) > MostOfField {
				want.Write(tooLong)
			}
			if !ok {
				break
			}
			want.WriteString(mark)
			text = rest
		}
		var got bytes.Buffer
		b := NewBounded(&got, mark)
		piece := rapid.SampledFrom([]int{1, 2, 7, 4096, 1 << 20}).Draw(t, "piece")
		for text := in.Bytes(); len(text) > 0; {
			n := min(len(text), piece)
			if m, err := b.Write(text[:n]); err != nil || m != n {
				t.Fatal(m, err)
			}
			text = text[n:]
		}
		must.OK(t, b.Close())
		must.Equal(t, got.String(), want.String())
	})
}
