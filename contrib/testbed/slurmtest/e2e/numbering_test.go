package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/prolog"
)

var (
	gpuFile   = regexp.MustCompile(`Gres Name=gpu .*File=(\S+)`)
	nodesGres = regexp.MustCompile(`Gres=\S+`)
)

// The hooks read in Slurm's configuration which device file each of Slurm's numbers means, and agree with what
// `slurmd -G` prints, in whatever order gres.conf, slurm.conf and NVML have the GPUs. (The hooks can't ask slurmd -G:
// from 24.11 on it needs munged, with AutoDetect it opens all GPUs, which takes longer than a hook may, and it says what
// it finds now rather than what the slurmd that runs found when it began.)
func TestNumberingIsSlurms(t *testing.T) {
	t.Parallel()
	const gpus = 4
	c := slurmtest.New(t, slurmtest.Options{GPUs: gpus, Sharing: "shard"})
	conf := string(must.Get(os.ReadFile(c.Path("slurm.conf")))(t))
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 56))
		// The GPU with place i in NVML's order has the device file minors[i] and is of type types[i].
		minors, types := r.Perm(gpus), make([]string, gpus)
		links, cards := make([]string, gpus), make([]prolog.Card, gpus)
		var lines, wanted []string
		for i := range gpus {
			types[i] = []string{"alpha", "beta"}[r.IntN(2)]
			cards[i] = prolog.Card{NVMLIndex: i, Minor: minors[i], Model: types[i], UUID: fmt.Sprint("GPU-", minors[i])}
			links[i] = strings.Join(slices.Replace(slices.Repeat([]string{"0"}, gpus), i, i+1, "-1"), ",")
		}
		for _, typ := range []string{"alpha", "beta"} {
			n := len(slices.DeleteFunc(slices.Clone(types), func(other string) bool { return other != typ }))
			if n > 0 {
				wanted = append(wanted, fmt.Sprintf("gpu:%s:%d", typ, n))
			}
		}
		r.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
		auto, fake := seed%3 == 0, ""
		for _, i := range r.Perm(gpus) {
			file := c.Path("dev", fmt.Sprint("nvidia", minors[i]))
			lines = append(lines, fmt.Sprintf("Name=gpu Type=%s File=%s", types[i], file))
			fake += fmt.Sprintf("%s|16|0-15|%s|%s|(null)|nvidia_gpu_env\n", types[i], links[i], file)
		}
		if auto {
			lines = []string{"AutoDetect=nvml"}
		}
		gres := "Gres=" + strings.Join(wanted, ",") + ",shard:400"
		dir := c.Path(fmt.Sprint("numbering", seed))
		must.OK(t, os.Mkdir(dir, 0o755))
		for name, text := range map[string]string{
			"slurm.conf": nodesGres.ReplaceAllString(conf, gres),
			"gres.conf":  strings.Join(lines, "\n") + "\nName=shard Count=400\n",
			// The hooks' slurm.conf: there Slurm keeps each job to its devices, so that its own numbers count, and not CUDA's.
			"hooks.conf":  "TaskPlugin=task/cgroup\nNodeName=n1 " + gres + "\n",
			"cgroup.conf": string(must.Get(os.ReadFile(c.Path("cgroup.conf")))(t)) + "ConstrainDevices=yes\n",
		} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		if auto { // Slurm takes the GPUs that it finds from there, where it is
			must.OK(t, os.WriteFile(filepath.Join(dir, "fake_gpus.conf"), []byte(fake), 0o644))
		}
		said := must.Get(c.Run(t.Context(), "slurmd", "-f", filepath.Join(dir, "slurm.conf"), "-N", "n1", "-G"))(t)
		var slurms, ours []string
		for _, m := range gpuFile.FindAllStringSubmatch(said, -1) {
			slurms = append(slurms, strings.TrimPrefix(filepath.Base(m[1]), "nvidia"))
		}
		must.OK(t, prolog.Dir(dir).WriteCards(cards))
		env := map[string]string{"SLURM_CONF": filepath.Join(dir, "hooks.conf"), "SLURMD_NODENAME": "n1"}
		hook := prolog.Settings{RunDir: dir}.Hook(func(name string) string { return env[name] }, time.Second)
		for number := range gpus {
			i := slices.IndexFunc(hook.Cards, func(c prolog.Card) bool { return c.Index == number })
			if i < 0 {
				ours = append(ours, "unknown")
				continue
			}
			ours = append(ours, fmt.Sprint(hook.Cards[i].Minor))
		}
		must.Equal(t, ours, slurms, "seed %d: device files by number, with %s and\n%s", seed, gres, lines)
	}
}
