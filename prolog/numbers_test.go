package prolog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// configured is a machine with four GPUs a to d in NVML's order, whose device files are numbered otherwise, and with
// Slurm's configuration.
func configured(t must.T, dir string, files map[string]string) ([]Card, site) {
	t.Helper()
	cards := []Card{
		{NVMLIndex: 0, Minor: 2, UUID: "GPU-a"},
		{NVMLIndex: 1, Minor: 3, UUID: "GPU-b"},
		{NVMLIndex: 2, Minor: 1, UUID: "GPU-c"},
		{NVMLIndex: 3, Minor: 0, UUID: "GPU-d"},
	}
	for i := range cards {
		cards[i].Model = "NVIDIA A100"
	}
	for name, text := range files {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return cards, readSite(filepath.Join(dir, "slurm.conf"), "n2")
}

// meant are the cards that Slurm's numbers mean, "?" for one that isn't certain.
func meant(cards []Card) string {
	var out []string
	for n := range len(cards) {
		c, known := card(cards, n)
		switch {
		case known && c.Lost:
			out = append(out, "lost")
		case known:
			out = append(out, strings.TrimPrefix(c.UUID, "GPU-"))
		default:
			out = append(out, "?")
		}
	}
	return strings.TrimRight(strings.Join(out, " "), "? ")
}

const constrained = "TaskPlugin=task/cgroup,task/affinity\n"

func TestWhichCardANumberMeans(t *testing.T) {
	conf := func(slurm, gres string) map[string]string {
		return map[string]string{"slurm.conf": slurm, "gres.conf": gres, "cgroup.conf": "ConstrainDevices=yes\n"}
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"gres.conf, each job kept to its devices": {conf(constrained, "Name=gpu File=/dev/nvidia[0-3]\n"), "d c a b"},
		"gres.conf in an order of its own": {conf(constrained,
			"NodeName=n[1-3] Name=gpu File=/dev/nvidia3,/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia2"), "b d c a"},
		"one GPU kept out": {conf(constrained,
			"Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia[2-3] # not 1"), "d a b"},
		"other nodes' lines": {conf(constrained,
			"NodeName=n[3-9] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n2 Name=gpu \\\n File=/dev/nvidia[2-3]"), "a b"},
		"slurm.conf's order of types comes first": {conf(constrained+"NodeName=n[1-4] Gres=gpu:y:2(S:0),gpu:x:1,shard:300",
			"Name=gpu Type=x File=/dev/nvidia[0-1]\nName=gpu Type=y File=/dev/nvidia[2-3]"), "a b d"},
		"slurm.conf's defaults": {conf(constrained+"NodeName=DEFAULT Gres=gpu:y:1\nNodeName=n2 CPUs=4",
			"Name=gpu Type=x File=/dev/nvidia[0-1]\nName=gpu Type=y File=/dev/nvidia[2-3]"), "a"},
		"AutoDetect=nvml": {conf(constrained, "AutoDetect=nvml\n"), "a b c d"},
		"AutoDetect=nvml, fewer wanted": {
			conf(constrained+"NodeName=n2 Gres=gpu:a100:3", "AutoDetect=nvml\n"),
			"a c d",
		},
		"AutoDetect=nvidia": {conf(constrained, "AutoDetect=nvidia\n"), "d c a b"},
		"AutoDetect of this node": {
			conf(constrained, "AutoDetect=nvml\nNodeName=n2 AutoDetect=nvidia"),
			"d c a b",
		},
		"AutoDetect off on this node": {conf(constrained,
			"AutoDetect=nvml\nNodeName=n2 AutoDetect=off Name=gpu File=/dev/nvidia[0-3]"), "d c a b"},
		// A Slurm built without NVML, as that of Debian 12, goes by the files.
		"AutoDetect=nvml with files in another order": {
			conf(constrained, "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]"),
			"",
		},
		"AutoDetect=nvml with files in its order": {conf(constrained,
			"AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3],/dev/nvidia[0-1]"), "a b"},
		"AutoDetect=full": {conf(constrained, "AutoDetect=full"), ""},
		"another maker's": {conf(constrained, "AutoDetect=rsmi"), ""},
		"no gres.conf":    {conf(constrained, ""), ""},
		// A job that can reach all cards takes the one that CUDA calls so.
		"each job can reach all GPUs": {map[string]string{
			"slurm.conf": "",
			"gres.conf":  "Name=gpu File=/dev/nvidia[0-3]\n",
		}, "a b c d"},
		"and one GPU is kept out": {map[string]string{
			"slurm.conf": "",
			"gres.conf":  "Name=gpu File=/dev/nvidia[1-3]\n",
		}, "a b c"},
		"ConstrainDevices without task/cgroup": {
			conf("TaskPlugin=task/affinity", "Name=gpu File=/dev/nvidia[0-3]\n"),
			"a b c d",
		},
		"a file that is included, quoted values": {map[string]string{
			"slurm.conf": "include more.conf",
			"more.conf":  constrained, "cgroup.conf": "ConstrainDevices = YES",
			"gres.conf": `Name="gpu" Files="/dev/nvidia[0-3]"`,
		}, "d c a b"},
	} {
		cards, s := configured(t, t.TempDir(), c.files)
		s.number(cards, t.TempDir())
		if got := meant(cards); got != c.want {
			t.Errorf("%s: numbers mean %q, want %q", name, got, c.want)
		}
	}
}

// A card that the driver has lost keeps its number while Slurm has it, and has none where slurm.conf wants one less.
func TestNumbersAroundALostCard(t *testing.T) {
	for wanted, want := range map[string]string{"4": "a lost c d", "3": "a c d"} {
		cards, s := configured(t, t.TempDir(), map[string]string{
			"slurm.conf": constrained + "NodeName=n2 Gres=gpu:" + wanted, "cgroup.conf": "ConstrainDevices=yes",
			"gres.conf": "AutoDetect=nvml",
		})
		cards[1] = Card{NVMLIndex: 1, Minor: 3, Lost: true}
		s.number(cards, t.TempDir())
		must.Equal(t, meant(cards), want, wanted)
	}
}

// cut is a GPU in three instances beside a whole one. Its instances' places under /proc are written, and which files
// give access to each: of those the first is a GPU instance's, and the next that of its only compute instance.
func cut(t must.T, proc string, caps map[int]int) []Card {
	t.Helper()
	folder := filepath.Join(proc, "driver/nvidia-caps")
	must.OK(t, os.MkdirAll(folder, 0o755))
	text := "config 1\nmonitor 2\n"
	for gi, n := range caps {
		text += fmt.Sprintf("gpu0/gi%d/access %d\ngpu0/gi%d/ci0/access %d\n", gi, n, gi, n+1)
		must.OK(t, os.MkdirAll(filepath.Join(proc, fmt.Sprintf("driver/nvidia/capabilities/gpu0/mig/gi%d/ci0", gi)), 0o755))
	}
	must.OK(t, os.WriteFile(filepath.Join(folder, "mig-minors"), []byte(text), 0o600))
	cards := []Card{{NVMLIndex: 1, Minor: 1, Model: "NVIDIA A100", UUID: "GPU-b"}}
	for gi := range caps {
		cards = append(cards, Card{GI: gi, Model: "NVIDIA A100 MIG 1g.5gb", UUID: fmt.Sprintf("MIG-%d", gi)})
	}
	return cards
}

// usual are the files of GPU instances 7 to 9 as drivers number them.
var usual = map[int]int{7: 66, 8: 75, 9: 84}

// named are the cards by number, "?" for one that isn't certain.
func named(cards []Card) string {
	var out []string
	for n := range cards {
		c, known := card(cards, n)
		if !known {
			c.UUID = "?"
		}
		out = append(out, c.UUID)
	}
	return strings.Join(out, " ")
}

// Instances follow whole cards where Slurm finds them, and are told by their files where gres.conf names them.
func TestNumbersOfInstances(t *testing.T) {
	const gpu0 = " MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap"
	files := func(kind string, n int) string {
		return fmt.Sprintf("Name=gpu Type=%s%s%d,/dev/nvidia-caps/nvidia-cap%d\n", kind, gpu0, n, n+1)
	}
	for name, c := range map[string]struct{ slurm, gres, want string }{
		"found by Slurm": {"", "AutoDetect=nvml", "GPU-b MIG-7 MIG-8 MIG-9"},
		// The type a100 is a part of the name of an instance of one, too (_normalize_sys_gres_types).
		"fewer than there are": {
			"NodeName=n2 Gres=gpu:1g.5gb:2,gpu:a100:1", "AutoDetect=nvml",
			"MIG-7 MIG-8 MIG-9 ?",
		},
		"by their whole name": {
			"NodeName=n2 Gres=gpu:nvidia_a100_1g.5gb:3", "AutoDetect=nvml",
			"MIG-7 MIG-8 MIG-9 ?",
		},
		"in gres.conf's order": {"", files("s", 84) + files("s", 66) + "Name=gpu Type=l File=/dev/nvidia1\n" +
			files("s", 75), "MIG-9 MIG-7 GPU-b MIG-8"},
		"slurm.conf's is first": {"NodeName=n2 Gres=gpu:l:1,gpu:s:3,shard:400", files("s", 84) + files("s", 66) +
			"Name=gpu Type=l File=/dev/nvidia1\n" + files("s", 75), "GPU-b MIG-9 MIG-7 MIG-8"},
		"an instance that isn't there":       {"", files("s", 66) + files("s", 93) + files("s", 75), "MIG-7 ? MIG-8 ?"},
		"a GPU that is cut, as if whole":     {"", "Name=gpu File=/dev/nvidia[0-1]", "? GPU-b ? ?"},
		"by a part of its files":             {"", "Name=gpu" + gpu0 + "84\n", "MIG-9 ? ? ?"},
		"with a file that others have":       {"", "Name=gpu" + gpu0 + "84,/dev/nvidia-uvm\n", "MIG-9 ? ? ?"},
		"a detector that knows no instances": {"", "AutoDetect=nvidia", "? ? ? ?"},
	} {
		proc := t.TempDir()
		cards := cut(t, proc, usual)
		_, s := configured(t, t.TempDir(), map[string]string{
			"slurm.conf":  constrained + c.slurm,
			"cgroup.conf": "ConstrainDevices=yes", "gres.conf": c.gres,
		})
		s.number(cards, proc)
		must.Equal(t, named(cards), c.want, name)
	}
}

// While the instances aren't those that the agent has listed no number means one of them, nor a GPU that was whole.
func TestInstancesThatAreOthers(t *testing.T) {
	for name, c := range map[string]struct {
		made, gone string
		want       string
	}{
		"as listed":         {"", "", "GPU-b MIG-7 MIG-8 MIG-9"},
		"one more":          {"gpu0/mig/gi10/ci0", "", "GPU-b ? ? ?"},
		"one less":          {"", "gpu0/mig/gi9", "GPU-b ? ? ?"},
		"the whole one cut": {"gpu1/mig/gi1/ci0", "", "? ? ? ?"},
		"nothing is known":  {"", "", "GPU-b ? ? ?"},
	} {
		proc := t.TempDir()
		cards := cut(t, proc, usual)
		folder := filepath.Join(proc, "driver/nvidia/capabilities")
		if c.made != "" {
			must.OK(t, os.MkdirAll(filepath.Join(folder, c.made), 0o755))
		}
		if c.gone != "" || name == "nothing is known" {
			must.OK(t, os.RemoveAll(filepath.Join(folder, c.gone)))
		}
		_, s := configured(t, t.TempDir(), map[string]string{
			"slurm.conf": constrained, "cgroup.conf": "ConstrainDevices=yes",
			"gres.conf": "AutoDetect=nvml",
		})
		s.number(cards, proc)
		must.Equal(t, named(cards), c.want, name)
	}
}

// In whatever order NVML has the instances, the driver numbers their files and gres.conf names them, beside a whole
// GPU: a number means the instance of its files, or where Slurm finds them the one that is as many places down their
// files.
func TestNumbersOfAnyInstances(t *testing.T) {
	dir, proc := t.TempDir(), t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		const most = 7
		numbers := rapid.Permutation([]int{12, 21, 30, 39, 48, 57, 66}).Draw(t, "files")
		n := rapid.IntRange(1, most).Draw(t, "instances")
		caps := map[int]int{}
		for gi := range n {
			caps[gi] = numbers[gi]
		}
		must.OK(t, os.RemoveAll(filepath.Join(proc, "driver")))
		cards := rapid.Permutation(cut(t, proc, caps)).Draw(t, "NVML's order")
		order := rapid.Permutation(cards).Draw(t, "gres.conf's order")
		gres := "AutoDetect=nvml\n"
		if rapid.Bool().Draw(t, "by hand") {
			gres = ""
			for _, c := range order {
				if c.mig() {
					gres += fmt.Sprintf("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap%d,/dev/nvidia-caps/nvidia-cap%d\n", caps[c.GI], caps[c.GI]+1)
				} else {
					gres += "Name=gpu File=/dev/nvidia1\n"
				}
			}
		} else {
			slices.SortFunc(order, func(a, b Card) int {
				if a.mig() != b.mig() {
					return strings.Compare(a.UUID, b.UUID) // GPU- is before MIG-
				}
				return caps[a.GI] - caps[b.GI]
			})
		}
		_, s := configured(t, dir, map[string]string{
			"slurm.conf": constrained, "cgroup.conf": "ConstrainDevices=yes",
			"gres.conf": gres,
		})
		s.number(cards, proc)
		for k, want := range order {
			if c, _ := card(cards, k); c.UUID != want.UUID {
				t.Fatalf("number %d means %q, want %q\n%s", k, c.UUID, want.UUID, gres)
			}
		}
	})
}

// However a node's cards are numbered by bus, by driver and in gres.conf, and whichever of them Slurm lacks, a number
// means the card of its file where a job has that alone, and else the card that CUDA calls so; no two numbers mean one
// card.
func TestNumbersOfAnyNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "cards")
		places := make([]int, n)
		for i := range places {
			places[i] = i
		}
		minors, bus := rapid.Permutation(places).Draw(t, "minors"), rapid.Permutation(places).Draw(t, "bus")
		files := rapid.Permutation(places).Draw(t, "files")[:max(1, n-rapid.IntRange(0, 1).Draw(t, "missing"))]
		cards := make([]Card, n)
		for i := range cards {
			cards[i] = Card{Minor: minors[i], NVMLIndex: bus[i], UUID: fmt.Sprintf("GPU-%d", i)}
		}
		s := site{constrains: rapid.Bool().Draw(t, "constrains")}
		for _, f := range files {
			s.lines = append(s.lines, gpuLine{devices: [][]string{{fmt.Sprintf("/none/nvidia%d", f)}}})
		}
		s.number(cards, "/none")
		seen := map[string]bool{}
		for k, f := range files {
			c, known := card(cards, k)
			if !known || seen[c.UUID] || s.constrains && c.Minor != f || !s.constrains && c.NVMLIndex != k {
				t.Fatalf("number %d means %+v", k, c)
			}
			seen[c.UUID] = true
		}
	})
}

// Slurm names cards to the prolog where it knows them; the job's file and the epilog go by that.
func TestSlurmNamesTheCard(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now, Cards: []Card{
		{Index: 0, UUID: "GPU-a"},
		{Index: 1, UUID: "GPU-b"},
		{Index: 2, UUID: "MIG-c"},
	}}
	must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_GPUS", "0,2", "CUDA_VISIBLE_DEVICES", "GPU-b,MIG-c",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")))
	j := must.Get(ReadJob(h.Dir.running(7)))(t)
	must.Equal(t, strings.Join(j.UUIDs, " "), "GPU-b MIG-c")
	if _, known := card(h.Cards, 1); known {
		t.Error("a card has two numbers")
	}
}

// A job on a card that isn't certain runs as Slurm started it: without MPS, and without a record of another card's use.
func TestACardThatIsNotCertain(t *testing.T) {
	h := simulated(t)
	h.Cards = []Card{{Index: unknown, UUID: "GPU-a"}, {Index: unknown, UUID: "GPU-b"}}
	h.MPS.Cards = h.Cards
	err := h.Prolog(t.Context(), env())
	if err == nil || !strings.Contains(err.Error(), "gpu 0: which of the node's cards") {
		t.Error(err)
	}
	if h.MPS.present(0) {
		t.Error("there is a daemon")
	}
	must.Equal(t, must.Get(ReadJob(h.Dir.running(7)))(t).UUIDs[0], "")
	must.OK(t, h.Epilog(t.Context(), env()))
}

func FuzzSlurmConf(f *testing.F) {
	f.Add("NodeName=n[1-3] Name=gpu File=/dev/nvidia[0-3]\nAutoDetect=nvml\nInclude gres.conf\n")
	f.Add("Name=gpu File=/dev/nvidia[0-9999999999],a[[[]]]b \\\n \\\n")
	f.Add("Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap21,a\ngpu1/gi0/access " +
		"21\ngpu1/gi0/ci0/access 99999999999999999999\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		must.OK(t, os.MkdirAll(filepath.Join(dir, "driver/nvidia-caps"), 0o755),
			os.MkdirAll(filepath.Join(dir, "driver/nvidia/capabilities/gpu1/mig/gi0/ci0"), 0o755))
		for _, name := range []string{"slurm.conf", "gres.conf", "cgroup.conf", "driver/nvidia-caps/mig-minors"} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		cards := []Card{{UUID: "GPU-a"}, {Minor: 1, NVMLIndex: 1, UUID: "MIG-b"}}
		s := readSite(filepath.Join(dir, "slurm.conf"), "n2")
		s.number(cards, dir)
		if cards[0].Index == cards[1].Index && cards[0].Index != unknown {
			t.Errorf("two cards with the number %d", cards[0].Index)
		}
	})
}

// Whether jobs have a /dev/shm of their own stands in slurm.conf, and in the file of the plugin that it names.
func TestSiteThatHidesMemory(t *testing.T) {
	for _, c := range []struct {
		slurm, file, text string
		want              bool
	}{
		{slurm: ""},
		{slurm: "JobContainerType=job_container/none", file: "job_container.conf", text: "BasePath=/x"},
		{slurm: "JobContainerType=job_container/tmpfs", file: "job_container.conf", text: "BasePath=/x", want: true},
		{slurm: "JobContainerType=job_container/tmpfs", file: "job_container.conf", text: "BasePath=/x Dirs=/tmp"},
		{slurm: "JobContainerType=job_container/tmpfs"}, // slurmd doesn't start
		{slurm: "NamespaceType=namespace/linux", file: "namespace.yaml", text: "defaults:\n  dirs: /dev/shm\n", want: true},
		{slurm: "NamespaceType=namespace/linux", file: "namespace.yaml", text: "defaults:\n  dirs: /tmp\n"},
	} {
		dir := t.TempDir()
		if c.file != "" {
			must.OK(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600))
		}
		s := readSite(confIn(t, dir, "slurm.conf", c.slurm+"\n"), "n1")
		must.Equal(t, s.hidesMemory, c.want, "%s %s", c.slurm, c.text)
	}
}
