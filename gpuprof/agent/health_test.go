package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

func TestErrorsOfAGPUAreSaid(t *testing.T) {
	b := newBench(t)
	b.wants("no look")
	b.scan()
	b.wants()
	b.now = b.now.Add(30 * time.Second)
	b.wants()
	b.now = b.now.Add(time.Second)
	b.wants("look at the job files", "31s ago")

	// With a job it is a sample that must be recent: ten periods, no more.
	b.begin(7, 1)
	b.wants()
	b.now = b.now.Add(10 * time.Second)
	b.wants()
	b.now = b.now.Add(time.Millisecond)
	b.scan() // the files alone say nothing of sampling
	b.wants("last sample", "10.001s ago")
	b.sample()
	b.wants()

	b.card(1).err = nvml.ErrLost
	b.sample()
	b.wants("gpu 1", nvml.ErrLost.Error())
	b.card(1).err = nil
	b.wants("gpu 1") // until it is seen to be well
	b.sample()
	b.wants()

	bad := filepath.Join(b.Dir.Jobs(), "9.json")
	must.OK(t, os.WriteFile(bad, []byte("{"), 0o600))
	b.scan()
	b.sample()
	b.wants("9.json")
	must.OK(t, os.Remove(bad))
	b.scan()
	b.sample()
	b.wants()
}

// Hooks don't count on a GPU that the driver loses while jobs run, and do again when it is back.
func TestHooksKnowALostGPU(t *testing.T) {
	b := newBench(t)
	b.begin(7, 1)
	for _, c := range []struct {
		err  error
		lost bool
	}{{nil, false}, {nvml.ErrLost, true}, {nil, false}} {
		b.card(1).err = c.err
		b.sample()
		cards := must.Get(b.Dir.Cards(""))(t)
		must.Equal(t, [2]bool{cards[0].Lost, cards[1].Lost}, [2]bool{false, c.lost}, "%v", c.err)
	}
}

// A GPU that failed is not called broken for ever when its job has gone: it is
// asked again, though there is nobody to sample it for.
func TestHealthAfterTheJob(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	b.card(0).err = nvml.ErrLost
	b.sample()
	b.ended(7)
	b.wants("gpu 0")
	must.OK(t, b.retry())
	b.wants("gpu 0")
	b.card(0).err = nil
	must.OK(t, b.retry())
	b.wants()
	// A job with a GPU that isn't there is wrong while it runs, whatever runs beside it.
	b.begin(8, 5)
	b.begin(9, 1)
	b.sample()
	b.ended(8)
	b.wants("gpu 5 of Slurm's")
	must.OK(t, b.retry())
	b.wants()
}

// A GPU that failed is forgotten when it is cut up, and its instances are read instead.
func TestHealthOfAGPUThatWasCutUp(t *testing.T) {
	b, d := rests(t, nvml.Device{UUID: "GPU-a"})
	b.card(0).err = nvml.ErrLost
	b.begin(1, 0)
	b.ticks(1)
	b.ended(1)
	b.wants("gpu 0")
	d.devices = migged()[:1]
	b.ticks(20)
	b.wants()
}

// A driver that hangs is found out while it does, and is forgiven when it answers again.
func TestHungDriverIsNoticed(t *testing.T) {
	b := newBench(t)
	b.card(0).use = is(0)
	b.begin(3, 0)
	b.elapse(time.Hour)
	must.Equal(t, b.idleFor(3) > 50*time.Minute, true, "a job that does nothing")
	b.sample()
	b.now = b.now.Add(time.Minute)
	hangs, answers, ended := make(chan bool), make(chan bool), make(chan bool)
	b.card(0).use = func() (float64, error) {
		close(hangs)
		<-answers
		return 0.5, nil
	}
	go func() {
		defer close(ended)
		b.sample()
	}()
	<-hangs
	b.wants("last sample was 1m0s ago")
	must.Equal(t, b.idleFor(3), 0, "what the job does now isn't known")
	close(answers)
	<-ended
	b.wants()
}
