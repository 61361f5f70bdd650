package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// dcgmPage is a page of dcgm-exporter's on a node with a whole GPU and one in two instances.
const dcgmPage = `# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-b",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-40GB",Hostname="n1"} 0.9
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",UUID="GPU-a",device="nvidia1",modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7",Hostname="n1"} 0.6
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",UUID="GPU-a",device="nvidia1",modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="2g.10gb",GPU_I_ID="5",Hostname="n1"} 7e9
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-b",device="nvidia0",Hostname="n1"} 0.8
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-a",device="nvidia1",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7",Hostname="n1"} 0.3
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-a",device="nvidia1",GPU_I_PROFILE="2g.10gb",GPU_I_ID="5",Hostname="n1"} 0.2
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-a",device="nvidia1",GPU_I_PROFILE="2g.10gb",GPU_I_ID="3",Hostname="n1"} 0.2
`

// Each instance that the page has both figures of is known by its GPU and its number.
func TestUseByDCGM(t *testing.T) {
	got := must.Get(dcgmUses(strings.NewReader(dcgmPage)))(t)
	want := map[place]nvml.Activity{{"GPU-a", "7"}: {SM: 0.3, Graphics: 0.6}, {"GPU-a", "5"}: {SM: 0.2, Graphics: 7e9}}
	must.Equal(t, got, want)
	must.Fail(t, must.Err(dcgmUses(strings.NewReader("<html>"))), "", "a page of something else")
}

// What the page says holds for a minute; a page that can't be read, that lacks an instance, or that says what can't be
// true makes its use unknown.
func TestDCGMIsReadAgain(t *testing.T) {
	var page atomic.Value
	page.Store(dcgmPage)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if page.Load() == "" {
			http.Error(w, "no", http.StatusTeapot)
			return
		}
		fmt.Fprint(w, page.Load())
	}))
	defer server.Close()
	now := time.Now()
	d := &DCGM{URL: server.URL, Now: func() time.Time { return now }}
	is := func(at place, sm float64, want error) {
		t.Helper()
		if a, err := d.activity(at); !errors.Is(err, want) || err == nil && a.SM != sm {
			t.Errorf("%v: %+v, %v; want %v", at, a, err, want)
		}
	}
	read := func() { // waits for the end of the reading that was begun
		for reads := true; reads; time.Sleep(time.Millisecond) {
			d.mu.Lock()
			reads = d.reading
			d.mu.Unlock()
		}
	}
	one := place{"GPU-a", "7"}
	is(one, 0, nvml.ErrNotYet)
	read()
	is(one, 0.3, nil)
	is(place{"GPU-a", "5"}, 0, nvml.ErrImplausible)
	is(place{"GPU-a", "3"}, 0, nvml.ErrNotSupported)
	is(place{"GPU-c", "7"}, 0, nvml.ErrNotSupported)
	page.Store("")
	now = now.Add(dcgmFresh)
	is(one, 0.3, nil) // and asks again
	read()
	now = now.Add(time.Second)
	must.Fail(t, must.Err(d.activity(one)), "teapot")
}
