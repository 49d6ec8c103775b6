package toolbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func (s *Server) version(_ *sandbox, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"version": s.config.Version})
}

func homeDir(box *sandbox, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"dir": box.files.User.Home})
}

func workDir(box *sandbox, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"dir": box.workDir})
}

// systemMetrics is the answer of GET /system/metrics; sizes are in bytes.
type systemMetrics struct {
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // of all CPUs, since the last question
	MemTotal      int64     `json:"memTotal"`
	MemUsed       int64     `json:"memUsed"` // what is not available to programs
	MemCache      int64     `json:"memCache"`
	DiskTotal     int64     `json:"diskTotal"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskFree      int64     `json:"diskFree"`
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
}

func (s *Server) metrics(_ *sandbox, w http.ResponseWriter, _ *http.Request) error {
	now := time.Now().UTC()
	m := systemMetrics{CPUCount: runtime.NumCPU(), Timestamp: now, TimestampUnix: now.Unix()}
	memory, err := readMeminfo()
	if err != nil {
		return err
	}
	m.MemTotal, m.MemUsed = memory["MemTotal"], memory["MemTotal"]-memory["MemAvailable"]
	m.MemCache = memory["Cached"] + memory["Buffers"] + memory["SReclaimable"]
	var disk unix.Statfs_t
	if err := unix.Statfs("/", &disk); err != nil {
		return fmt.Errorf("read file system size: %w", err)
	}
	block := int64(disk.Frsize)
	m.DiskTotal, m.DiskFree = int64(disk.Blocks)*block, int64(disk.Bavail)*block
	m.DiskUsed = int64(disk.Blocks-disk.Bfree) * block
	if m.CPUUsedPct, err = s.cpu.used(); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, &m)
}

// readMeminfo reads /proc/meminfo, proc_meminfo(5), in bytes.
func readMeminfo() (map[string]int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read memory size: %w", err)
	}
	values := map[string]int64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
			values[name] = kib << 10
		}
	}
	return values, nil
}

// cpuMeter measures CPU use between two questions, the first since boot.
type cpuMeter struct {
	mu          sync.Mutex
	total, idle uint64
}

func (c *cpuMeter) used() (percent float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read cpu time: %w", err)
	}
	total, idle, ok := parseCPU(text)
	if !ok {
		return 0, errors.New("read cpu time: /proc/stat has no cpu line")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if total > c.total {
		percent = 100 * (1 - float64(idle-c.idle)/float64(total-c.total))
	}
	c.total, c.idle = total, idle
	return min(max(percent, 0), 100), nil
}

// parseCPU reads the first line of /proc/stat, proc_stat(5): user, nice, system,
// idle, iowait, irq, softirq, steal, and two that are counted in user and nice.
func parseCPU(text []byte) (total, idle uint64, ok bool) {
	line, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, 0, false
	}
	for i, field := range f[1:9] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, false
		}
		total += n
		if i == 3 || i == 4 {
			idle += n
		}
	}
	return total, idle, true
}
