package nvml

import (
	"errors"
	"os"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

func TestAccount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("accounting mode is root's to switch on")
	}
	lib, st := machine(t, gpusim.Config{Model: "v100"})
	d := &lib.Devices()[0]
	if d.Answers.Accounting {
		t.Error("accounting is off, and yet it answers")
	}
	if ret := d.gpu.handle.SetAccountingMode(gonvml.FEATURE_ENABLED); ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	again := lib.(*library).describe(0, d.gpu.handle)
	if d = &again; !d.Answers.Accounting {
		t.Fatalf("%v", d.Refusals)
	}
	before := time.Now()
	pid := run(t, st.Device(0), gpusim.Claimant{}, use)
	time.Sleep(5 * time.Millisecond)
	a, err := d.Account(pid)
	if err != nil || !a.Running || a.GPU != .5 || a.PeakMiB != 2000 || a.Lifetime != 0 || a.Start.Before(before.Add(-time.Second)) || a.Start.After(time.Now()) {
		t.Errorf("%+v, %v", a, err)
	}
	for mode, want := range map[string]error{
		"huge": ErrImplausible, "backwards": ErrImplausible, "return=3": ErrNotSupported, "return=15": ErrLost, "zero": nil, "none": nil,
	} {
		if err := st.Device(0).SetFault("accounting", mode); err != nil {
			t.Fatal(err)
		}
		if a, err := d.Account(pid); !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v", mode, a, err)
		}
	}
}
