package loop

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// However many accounts there are, the number of series is bounded, what isn't known has none, and nothing is left out.
func TestUsageMetricsAreBounded(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	r := &usage.Report{}
	for i := range 500 {
		one := 1.0
		l := usage.Line{Name: fmt.Sprintf("account%d", i), Held: 2}
		if i%2 == 0 {
			l.Computed = &one
		}
		r.Lines = append(r.Lines, l)
		r.Total.Held += 2
	}
	m.Usage(r, false)
	if n := testutil.CollectAndCount(m.usage.hours); n != mostAccounts+mostAccounts/2+2 {
		t.Errorf("%d series", n)
	}
	if v := testutil.ToFloat64(m.usage.hours.WithLabelValues(otherAccounts, "held")); v != 2*(500-mostAccounts) {
		t.Errorf("all others held %v h", v)
	}
	if n := testutil.CollectAndCount(m.usage.saved); n != 0 {
		t.Errorf("%d series of what isn't known", n)
	}
	m.Usage(r, true)
	if n := testutil.CollectAndCount(m.usage.hours); n != 1 {
		t.Errorf("%d series where usage is hidden", n)
	}
	m.Usage(nil, false)
	if n := testutil.CollectAndCount(m.usage.hours); n != 0 {
		t.Errorf("%d series of nothing", n)
	}
}
